"""A trap in a folder: whichever process passes its step for the nth time dies there.

All processes of a case share the folder, so it does not matter whether a driver, a task or one of Spark's own Python
processes passes the step. A trap strikes once.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.kit.crash_points import Step

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_SERVER_SECONDS: Final = 60.0


class Death(StrEnum):
    """What happens at a step."""

    KILL = "SIGKILL"
    EXIT = "exit"
    """os._exit: nothing is flushed, closed or rolled back."""
    PAUSE = "pause"
    """SIGSTOP until another driver has taken over, then SIGCONT."""
    CUT = "cut"
    """The process loses its connections to all services, and goes on."""
    KAFKA = "kafka"
    """SIGKILL to the broker; the process goes on, and the broker is started again."""
    POSTGRES = "postgres"
    """SIGKILL to the database server; the process goes on, and the server is started again."""
    MARIADB = "mariadb"
    VALKEY = "valkey"


class Strike(msgspec.Struct, frozen=True):
    """One death.

    Attributes:
        step: Where.
        nth: At which pass, counted from 1 over all processes.
        death: What happens.
    """

    step: Step
    nth: int
    death: Death


class Struck(msgspec.Struct, frozen=True):
    """A strike that happened, and to which process."""

    strike: Strike
    pid: int


class Trap:
    """Strikes that happen one after another.

    Args:
        folder: Shared by all processes of a case.
        ports: Of the services, for CUT.
    """

    def __init__(self, folder: Path, ports: Collection[int] = ()) -> None:
        self._set, self._struck, self._lock = folder / "set", folder / "struck", folder / "lock"
        self.started, self.answered = folder / "started", folder / "answered"
        self._ports = ports

    def set(self, strikes: Sequence[Strike]) -> None:
        """Set it; forget what was before."""
        for file in (self._set, self._struck, self.started, self.answered):
            file.unlink(missing_ok=True)
        self._put(strikes)

    def clear(self) -> None:
        """Nothing strikes any more."""
        self._set.unlink(missing_ok=True)

    @property
    def struck(self) -> list[Struck]:
        """What has happened, in order."""
        with suppress(FileNotFoundError):
            return [msgspec.json.decode(line, type=Struck) for line in self._struck.read_bytes().splitlines()]
        return []

    def __call__(self, step: Step) -> None:
        """The hook of every process; see `onceward.core.kit.crash_points.hooked`."""
        if step is Step.START_AFTER:
            self.started.touch()
        waiting = self._waiting()
        if not waiting or waiting[0].step is not step:
            return
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting = self._waiting()  # another process may have been faster
            if not waiting or waiting[0].step is not step:
                return
            first, *others = waiting
            if first.nth > 1:
                self._put([msgspec.structs.replace(first, nth=first.nth - 1), *others])
                return
            with self._struck.open("ab") as file:
                file.write(msgspec.json.encode(Struck(first, os.getpid())) + b"\n")
            self._put(others)
        self._die(first.death)

    def _waiting(self) -> list[Strike]:
        with suppress(FileNotFoundError):
            return msgspec.json.decode(self._set.read_bytes(), type=list[Strike])
        return []

    def _put(self, strikes: Sequence[Strike]) -> None:
        partial = self._set.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(strikes))
        partial.replace(self._set)
        if not strikes:
            self._set.unlink()

    def _die(self, death: Death) -> None:
        if death is Death.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif death is Death.EXIT:
            os._exit(70)
        elif death is Death.PAUSE:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif death is Death.CUT:
            _cut(self._ports)
        else:
            until = time.monotonic() + _SERVER_SECONDS
            while not self.answered.exists() and time.monotonic() < until:
                time.sleep(0.01)


def _cut(ports: Collection[int]) -> None:
    """Shut down this process's connections to these ports, whichever library holds them."""
    for open_file in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if not str(open_file.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(open_file.name))) as link:
                if link.family in (socket.AF_INET, socket.AF_INET6) and link.getpeername()[1] in ports:
                    link.shutdown(socket.SHUT_RDWR)
