"""A Spark Connect server as a process of the tests, and crashes in the processes in which it runs onceward."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import psutil
import pyspark

from onceward import FileSink
from onceward.core.kit import crash_points as steps
from onceward.core.kit.crash_points import Step, kill_at
from onceward.testing.machine import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from onceward.core.log import EpochInput

ROOT: Final = Path(__file__).parent.parent
REMOTE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Set by `SparkSession.builder.remote`: functions of pyspark.sql then make columns for a server."""
SPARK_HOME: Final = Path(str(pyspark.__file__)).parent
_READY_SECONDS: Final = 60.0
WORKER: Final = "foreach_batch_worker"


@dataclass
class ConnectServer:
    """A server in local mode with two task slots, which tries a task four times.

    Attributes:
        folder: Where it runs, and writes its log.
        environment: Of its process and of all that it starts.
        settings: Spark's.
        own_group: Whether it outlives the process group that starts it.
        master: Spark's master.
    """

    folder: Path
    environment: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    own_group: bool = True
    master: str = "local[2,4]"
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"spark.connect.grpc.binding.port": str(self.port), **self.settings}
        pairs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-submit", "--master", self.master, *pairs, *main],
                cwd=self.folder,
                env=dict(self.environment),
                stdout=log,
                stderr=log,
                start_new_session=self.own_group,
            )
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=_READY_SECONDS)

    def session(self) -> SparkSession:
        """A new session of a client, which is the active one.

        pyspark keeps an older one as active that nobody stopped. If its server has been killed, functions that ask the
        active session for a setting wait for that server for minutes (`is_debugging_enabled`, pyspark 4.2).
        """
        from pyspark.sql.connect.session import SparkSession

        session: Any = SparkSession.builder.remote(self.url).create()
        SparkSession._default_session = SparkSession._active_session.session = session
        return session

    def workers(self) -> list[psutil.Process]:
        """The processes that run foreachBatch functions, also of a server that has died."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(WORKER in part for part in process.cmdline()) and process.cwd() == str(self.folder):
                    found.append((process, process.ppid()))
        # A worker that has forked to start another program has a child with its own command line until that begins.
        return [process for process, parent in found if parent not in {other.pid for other, _ in found}]

    def task_workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks: children of Spark's daemons of workers."""
        assert self._process is not None
        found = []
        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    parent = process.parent()
                    if parent is not None and all("pyspark.daemon" in one.cmdline() for one in (process, parent)):
                        found.append(process)
        return found

    def wait(self) -> None:
        """Wait until the JVM has ended."""
        assert self._process is not None
        self._process.wait()

    def kill(self) -> None:
        """Kill the JVM, and nothing else."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End everything."""
        assert self._process is not None
        children = []
        with suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for process in [*children, *self.workers()]:
            with suppress(psutil.Error):
                process.kill()


@contextmanager
def remote_functions() -> Iterator[None]:
    """In a process that may have a classic session too, let functions of pyspark.sql make columns for a server."""
    before = os.environ.get(REMOTE)
    os.environ[REMOTE] = "1"
    try:
        yield
    finally:
        del os.environ[REMOTE]
        if before is not None:
            os.environ[REMOTE] = before


class CrashAt:
    """An `on_complete` that kills the server's process of foreachBatch at a step; unpickling it is what arms it.

    Args:
        step: The step.
        count: How often it is passed before.
    """

    def __init__(self, step: Step, count: int = 1) -> None:
        self.specification = f"{step}:{count}"

    def __call__(self, epoch: int, about: EpochInput) -> None:
        """Nothing: it is armed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _armed, (self.specification,)


def _armed(specification: str) -> Callable[..., None]:
    steps._hook = kill_at(specification)
    return lambda *_: None


class HoldAt:
    """An `on_complete` that lets the process wait at a step, until a file is there.

    Args:
        step: The step.
        held: File that says that it waits.
        free: File for which it waits.
    """

    def __init__(self, step: Step, held: Path, free: Path) -> None:
        self.arguments = (step, held, free)

    def __call__(self, epoch: int, about: EpochInput) -> None:
        """Nothing: it is armed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _holding, self.arguments


def _holding(step: Step, held: Path, free: Path) -> Callable[..., None]:
    def hook(reached: Step) -> None:
        if reached is step:
            held.touch()
            while not free.exists():
                time.sleep(0.05)

    steps._hook = hook
    return lambda *_: None


class WorkerCrash(FileSink):
    """A sink whose first task dies at a step: the Python worker is killed, once."""

    def __init__(self, name: str, folder: Path, mark: Path, step: Step) -> None:
        super().__init__(name, folder)
        self.mark, self.step = mark, step

    def begin(self, context: Any) -> Any:
        if not self.mark.exists():
            self.mark.touch()
            steps._hook = kill_at(self.step)
        return super().begin(context)


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found
