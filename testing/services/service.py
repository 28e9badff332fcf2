"""What the local services have in common: a folder, settings that last, a process, a life cycle."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import contextmanager
from signal import SIGCONT, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any, ClassVar

from .machine import DevServiceError
from .process import BackgroundProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .process import RunAs

POLL_SECONDS = 0.05


class Service(ABC):
    """A server that runs in the background, with all its state in one folder.

    Ports and names are chosen at the first start and kept, so that clients find a restarted server where it was.
    Another object, in this program or another, that is given the same folder controls the same server.

    Args:
        folder: Folder of this service's state; made at the first start.
        detached: True: the server outlives this program. False (default): it dies with it, whatever ends it.
    """

    title: ClassVar[str]
    address_name: ClassVar[str]
    """What clients call this service's address."""
    stop_signals: ClassVar[Sequence[tuple[Signals, float]]]
    """Signals to try in turn for an orderly stop, each with the seconds to wait."""

    def __init__(self, folder: Path, *, detached: bool = False) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._process = BackgroundProcess(folder / "process.json", detached=detached)
        self._settings: dict[str, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, None while it does not run."""
        process = self._process.find()
        return process.pid if process else None

    @property
    def running(self) -> bool:
        """Whether the server's process is there; `wait_ready` says whether it answers."""
        return self.pid is not None

    @property
    @abstractmethod
    def address(self) -> str:
        """What a client connects to."""

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen at the first start."""
        if self._settings is None:
            self._settings = self._load_settings()
        return self._settings

    def start(self) -> None:
        """Starts the server unless it runs, and returns at once; `wait_ready` waits until it answers.

        Raises:
            ConfigurationError: A program that it needs is missing; the message says what to install.
            DevServiceError: It cannot be fetched or prepared.
        """
        with self._locked():
            if self.running:
                return
            command = self._prepare()
            self._process.launch(command, log=self.log, user=self._run_as(), env=self._environment())

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves clients now; waits a second at most."""

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until the server serves clients.

        Args:
            timeout: Seconds to wait.

        Raises:
            DevServiceError: It ended, or does not answer in time; the message ends with the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not self.answers():
            if self._process.ended_within(POLL_SECONDS):
                raise DevServiceError(f"{self.title} is not running. {self._last_words()}")
            if time.monotonic() > deadline:
                raise DevServiceError(f"{self.title} did not answer within {timeout:g} s. {self._last_words()}")

    def stop(self) -> None:
        """Stops the server in an orderly way, or by SIGKILL if it does not end in time. No effect if it is down."""
        with self._locked():
            self._process.stop(self.stop_signals)

    def kill(self) -> None:
        """Crashes the server: SIGKILL to it and all its children. Returns when they are gone."""
        with self._locked():
            self._process.kill()

    def restart(self, timeout: float = 60.0) -> None:
        """Stops the server if it runs, starts it and waits until it answers (`timeout` in seconds)."""
        self.stop()
        self.start()
        self.wait_ready(timeout)

    def delete(self) -> None:
        """Kills the server and deletes its data, its settings and its log."""
        self.kill()
        shutil.rmtree(self.folder)
        self._settings = None

    def pause(self) -> None:
        """Freezes the server (SIGSTOP): connections stay open and nothing is answered."""
        self._process.signal(SIGSTOP)

    def resume(self) -> None:
        """Lets a paused server go on."""
        self._process.signal(SIGCONT)

    @abstractmethod
    def _new_settings(self) -> dict[str, Any]:
        """Chooses ports and names for a new folder."""

    @abstractmethod
    def _prepare(self) -> list[str | Path]:
        """Makes everything ready and returns the command that runs the server in the foreground."""

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _run_as(self) -> RunAs | None:
        return None

    def _load_settings(self) -> dict[str, Any]:
        path = self.folder / "settings.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.touch(mode=0o600)
            partial.write_text(json.dumps(self._new_settings()))
            partial.replace(path)
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _last_words(self) -> str:
        if not self.log.exists():
            return "It was never started."
        with self.log.open(errors="replace") as lines:
            tail = "".join(deque(lines, maxlen=15))
        return f"The end of {self.log}:\n{tail}"
