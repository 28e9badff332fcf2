"""A server in the background: a folder, settings that last, a process that is found again, a life cycle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from signal import SIGCONT, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psutil

from onceward.core.errors import ConfigurationError
from onceward.core.kit.programs import as_user

from ..machine import DevServiceError, end_of, lock_file
from . import guard

if TYPE_CHECKING:
    import pwd
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

_POLL_SECONDS: Final = 0.05
_BEFORE_START: Final = frozenset({"lock", "server.log"})
"""Files of a service that was stopped or looked at, and never started."""


class Service(ABC):
    """A server that runs in the background, with all its state in one folder.

    Ports and names are chosen at the first start and kept, so that clients find a restarted server where it was. The
    process is remembered in a file by id and creation time: another object, in this program or another, that is given
    the same folder controls the same server.

    Args:
        folder: Folder of this service's state; made at the first start.
        detached: True: the server outlives this program. False (default): it dies with it, whatever ends it.
    """

    title: ClassVar[str]
    address_name: ClassVar[str]
    """Name that clients use for this service's address, and of the attribute that holds it."""
    stop_signals: ClassVar[Sequence[tuple[Signals, float]]]
    """Signals to try in turn for an orderly stop, each with the seconds to wait."""

    def __init__(self, folder: Path, *, detached: bool = False) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.detached = detached
        self._record = folder / "process.json"
        self._settings: dict[str, Any] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, None while it does not run."""
        process = self._find()
        return process.pid if process else None

    @property
    def running(self) -> bool:
        """Whether the server's process is there; `wait_ready` says whether it answers."""
        return self.pid is not None

    @property
    def address(self) -> str:
        """The address that a client connects to."""
        return str(getattr(self, self.address_name))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, which are chosen at the first start."""
        path = self.folder / "settings.json"
        if self._settings is None:
            if not path.exists():
                self._check_own()
                self.folder.mkdir(parents=True, exist_ok=True)
                partial = path.with_suffix(f".{os.getpid()}.partial")
                partial.touch(mode=0o600)
                partial.write_text(json.dumps(self._new_settings()))
                partial.replace(path)
            self._settings = json.loads(path.read_text())
        return self._settings

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server serves clients now; wait a second at most."""

    def start(self) -> None:
        """Start the server unless it runs, and return at once; `wait_ready` waits until it answers.

        Raises:
            ConfigurationError: A program that it needs is missing (the message says what to install), or its folder
                holds other files.
            DevServiceError: It cannot be fetched or prepared.
        """
        self._check_own()
        with self._locked():
            if not self.running:
                _ = self.settings  # before any other file: it shows whose folder this is
                self._launch(self._prepare())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server serves clients.

        Args:
            timeout: Seconds to wait.

        Raises:
            DevServiceError: It ended, or does not answer in time; the message ends with the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not self.answers():
            if not self.running:
                raise DevServiceError(f"{self.title} is not running. {self._end_of_log()}")
            if time.monotonic() > deadline:
                raise DevServiceError(f"{self.title} did not answer within {timeout:g} s. {self._end_of_log()}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop the server in an orderly way, or by SIGKILL if it does not end in time. No effect if it is down."""
        with self._locked():
            for number, seconds in self.stop_signals:
                if process := self._find():
                    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                        process.send_signal(number)
                        process.wait(seconds)
            self._kill()

    def kill(self) -> None:
        """Crash the server: SIGKILL to it and all its descendants. Returns when they are gone.

        Raises:
            DevServiceError: It is still there.
        """
        with self._locked():
            self._kill()

    def start_again(self, timeout: float = 60.0) -> None:
        """Start the server after `kill`, on the same data and port, and wait until it answers (seconds)."""
        self.start()
        self.wait_ready(timeout)

    def restart(self, timeout: float = 60.0) -> None:
        """Stop the server if it runs, start it and wait until it answers (`timeout` in seconds)."""
        self.stop()
        self.start_again(timeout)

    def delete(self) -> None:
        """Kill the server and delete its data, its settings and its log. No effect if it was never started.

        Raises:
            ConfigurationError: The folder is not this service's. Nothing was deleted.
        """
        self._check_own()
        if not self.folder.exists():
            return
        self.kill()
        shutil.rmtree(self.folder)
        self._settings = None

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(SIGSTOP)

    def resume(self) -> None:
        """Continue a paused server."""
        self._signal(SIGCONT)

    @abstractmethod
    def _new_settings(self) -> dict[str, Any]:
        """Choose ports and names for a new folder."""

    @abstractmethod
    def _prepare(self) -> list[str | Path]:
        """Make everything ready and return the command that runs the server in the foreground."""

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _user(self) -> pwd.struct_passwd | None:
        """Return the user under whose name it runs, if not that of this program."""
        return None

    def _check_own(self) -> None:
        """Refuse a folder that this service did not make: `delete` removes all that is in it."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigurationError(f"{self.folder} is a file: give {self.title} another folder")
        try:
            settings = json.loads((self.folder / "settings.json").read_text())
            own = isinstance(settings, dict) and "port" in settings
        except FileNotFoundError:  # never started: whatever is there beside our lock is somebody else's
            own = not self.folder.exists() or all(path.name in _BEFORE_START for path in self.folder.iterdir())
        except ValueError:
            own = False
        if not own:
            raise ConfigurationError(
                f"{self.folder} holds files that are not {self.title}'s, so nothing was changed in it: give another "
                "folder as the services' home"
            )

    def _locked(self) -> AbstractContextManager[None]:
        return lock_file(self.folder / "lock")

    def _launch(self, command: list[str | Path]) -> None:
        with self.log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603 - a program that the subclass has found or fetched
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=self._environment(),
                start_new_session=True,
                **as_user(self._user()),
            )
        try:
            created = psutil.Process(child.pid).create_time()
            if not self.detached:
                self._guard = _start_guard(child.pid, created)
            partial = self._record.with_suffix(".partial")
            partial.write_text(json.dumps({"pid": child.pid, "created": created}))
            partial.replace(self._record)
        except BaseException:
            child.kill()
            child.wait()
            raise
        self._child = child

    def _find(self) -> psutil.Process | None:
        if self._child is not None and self._child.poll() is not None:
            self._reap()
        try:
            return guard.find_process(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None

    def _kill(self) -> None:
        if process := self._find():
            guard.kill_tree(process)
        if process := self._find():
            raise DevServiceError(f"{self.title}, process {process.pid}, cannot be killed")
        self._record.unlink(missing_ok=True)
        self._reap()

    def _signal(self, number: Signals) -> None:
        process = self._find()
        for member in [process, *process.children(recursive=True)] if process else []:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()
            self._child = None
        if self._guard is not None and self._guard.stdin is not None:
            # It ends by itself when its pipe is closed, unless somebody forked meanwhile and holds the other end too.
            self._guard.kill()
            self._guard.wait()
            self._guard.stdin.close()
            self._guard = None

    def _end_of_log(self) -> str:
        return f"The end of {self.log}:\n{end_of(self.log, 15)}" if self.log.exists() else "It was never started."


def _start_guard(pid: int, created: float) -> subprocess.Popen[bytes]:
    # -P: the folder of the script must not come first on the module path, PYTHONPATH must stay on it.
    return subprocess.Popen(  # noqa: S603 - this very Python and a file of this package
        [sys.executable, "-P", guard.__file__, str(pid), repr(created)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
