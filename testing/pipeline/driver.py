"""A pipeline's driver program: one life of it as a process group, and a supervisor that starts it again.

Which of its processes do the work is found by their place in the process tree, and by whom they report to. PySpark's
driver is a Python process whose child is a JVM (with spark-submit, the other way round). In local mode that JVM runs
the tasks. On a cluster an executor's JVM is a child of Spark's worker daemon, so that no process tree leads to it from
the driver; but it is started with the address of the driver (`--driver-url`), on whose port one of the driver's
processes listens. An executor on another machine is out of reach.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import psutil

from onceward.core.errors import ConfigurationError, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Command: TypeAlias = Sequence[str | Path] | Callable[[], object]

_LEFTOVER_SECONDS: Final = 10.0
_RESTART_SECONDS: Final = 0.5
_DRIVER_URL: Final = re.compile(r"--driver-url\0[^\0]*:(\d+)(?:\0|$)")
_CALL: Final = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='driver')[sys.argv[2]]()"


def arguments_of(command: Command) -> list[str]:
    """Return the arguments that start a driver: a command as it is, or Python with a function at a file's top level."""
    if not callable(command):
        return [str(part) for part in command]
    file, name = inspect.getsourcefile(command), getattr(command, "__qualname__", "?")
    if file is None or not name.isidentifier():
        raise ConfigurationError(f"command = {name}: the function must be at the top level of a file")
    return [sys.executable, "-c", _CALL, file, name]


@dataclass(frozen=True)
class DriverStart:
    """The command, environment and files with which a driver starts.

    Attributes:
        arguments: The program and its arguments.
        environment: Its variables, all of them.
        folder: Folder in which it runs.
        log: File to which its output is appended.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path


class DriverProcess:
    """One life of a driver, in a process group of its own.

    Raises:
        ConfigurationError: The program cannot be started.
    """

    def __init__(self, start: DriverStart, extra: Mapping[str, str] | None = None) -> None:
        with start.log.open("ab") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - what is tested
                    start.arguments,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd=start.folder,
                    env={**start.environment, **(extra or {})},
                )
            except OSError as error:
                raise ConfigurationError(f"the driver cannot be started: {text_of(error)}") from error

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until it ends; its exit code."""
        return self._process.wait()

    def descendants(self) -> list[psutil.Process]:
        """Return all processes that the driver has started, workers of other process groups among them."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def family(self) -> list[psutil.Process]:
        """Return the driver and all its descendants; none if it has ended."""
        try:
            return [psutil.Process(self._process.pid), *self.descendants()] if self.exit_code is None else []
        except psutil.NoSuchProcess:
            return []

    def python_workers(self) -> list[psutil.Process]:
        """Return the Python processes below the driver that have no children: Spark's workers, not their daemon."""
        return [process for process in self.descendants() if _is_worker(process)]

    def jvms(self) -> list[psutil.Process]:
        """Return the JVMs of Spark's executors; without executors, the driver's own."""
        own = [process for process in self.family() if _is_jvm(process)]
        if not own:
            return []
        ports = {port for process in own for port in _listening(process)}
        return [process for process in psutil.process_iter() if _reports_to(process) in ports] or own

    def kill(self, grace: float = 0.0) -> None:
        """Kill the process group (SIGKILL); return when the descendants of other groups are gone too.

        Spark's Python workers lead groups of their own and end by themselves when the JVM is gone.

        Args:
            grace: Seconds between SIGTERM and SIGKILL; 0: no SIGTERM.
        """
        descendants = self.descendants()
        if grace:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _, alive = psutil.wait_procs(descendants, timeout=_LEFTOVER_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("python") and not process.children()
    return False


def _is_jvm(process: psutil.Process) -> bool:
    with suppress(psutil.Error, OSError):
        return Path(process.exe()).name == "java"
    return False


def _listening(process: psutil.Process) -> Iterable[int]:
    with suppress(psutil.Error):
        return [end.laddr.port for end in process.net_connections("tcp") if end.status == psutil.CONN_LISTEN]
    return []


def _reports_to(process: psutil.Process) -> int | None:
    """Return the port of the driver that an executor was started for; None for any other process."""
    with suppress(psutil.Error):
        found = _DRIVER_URL.search("\0".join(process.cmdline()))
        return int(found[1]) if found and _is_jvm(process) else None
    return None


@contextmanager
def paused(processes: Collection[psutil.Process]) -> Iterator[None]:
    """Stop these processes (SIGSTOP) while the block runs, and continue those that are left (SIGCONT)."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@dataclass
class DriverSupervisor:
    """Starts a driver, and starts it again half a second after it ended, as a service manager would.

    Attributes:
        start: Command, environment and files with which the driver starts.
        first: Further variables for its first life.
        exit_codes: Exit codes of the lives that ended.
    """

    start: DriverStart
    first: Mapping[str, str] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._may_start = threading.Lock()
        self.driver = DriverProcess(self.start, self.first)
        self._others: list[DriverProcess] = []
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        while True:
            self.exit_codes.append(self.driver.wait())
            self.driver.kill()  # what it has left behind
            self._stopped.wait(_RESTART_SECONDS)
            with self._may_start:
                if self._stopped.is_set():
                    return
                self.driver = DriverProcess(self.start)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Kill the driver, and keep it down while the block runs."""
        with self._may_start:
            self.driver.kill()
            yield

    def start_another(self) -> None:
        """Start a second driver beside the first; nobody starts it again."""
        self._others.append(DriverProcess(self.start))

    def stop_others(self, seconds: float) -> None:
        """Stop the drivers beside the first (seconds until SIGKILL)."""
        while self._others:
            self._others.pop().kill(seconds)

    def stop(self, seconds: float) -> None:
        """Stop every driver; none starts again. `seconds` is the time until SIGKILL."""
        if self._stopped.is_set():
            return
        with self._may_start:
            self._stopped.set()
            self.driver.kill(seconds)
        self._thread.join()
        self.stop_others(seconds)
