"""What local services need of this machine: ports that stay free while a service is down, folders, an answer."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError, ExternalError

if TYPE_CHECKING:
    from collections.abc import Collection

# Below the range from which systems take the ports of outgoing connections (32768 up on Linux, 49152 up elsewhere):
# otherwise a client's connection may sit on a killed server's port when that is to come back.


class DevServiceError(ExternalError):
    """A local Kafka broker or PostgreSQL server could not be fetched, started or stopped. Says what to do."""


FIRST, LAST = 20_000, 32_000
ATTEMPTS = 200
LOOPBACK = "127.0.0.1"


def free_port(taken: Collection[int] = ()) -> int:
    """A port of the loopback address on which nobody listens.

    Args:
        taken: Ports that were given out already and may not be bound yet.

    Raises:
        DevServiceError: No free port was found.
    """
    choose = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = choose.randrange(FIRST, LAST)
        if port not in taken and _bindable(port):
            return port
    raise DevServiceError(f"no free TCP port between {FIRST} and {LAST} on {LOOPBACK}")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def accepts_connections(port: int) -> bool:
    """Whether something accepts connections on this port of the loopback address."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def state_home(home: str | Path | None = None) -> Path:
    """The folder that holds the state of one set of services.

    Args:
        home: Folder asked for; default is the environment's ONCEWARD_DEV_HOME, then `.run` in the current folder.
    """
    return Path(home or os.environ.get("ONCEWARD_DEV_HOME") or ".run").expanduser().absolute()


def cache_home() -> Path:
    """The folder for fetched programs: ONCEWARD_CACHE, else `onceward` in the user's cache folder."""
    chosen = os.environ.get("ONCEWARD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "onceward"


def broker_answers(bootstrap_servers: str) -> bool:
    """Whether a registered broker answers at this address with the cluster's metadata; waits a second at most."""
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - optional dependency
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError("confluent-kafka is needed: pip install 'onceward[kafka]'") from error
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
