"""A standalone cluster of Spark on this machine: its master and its workers are processes that may be killed."""

from __future__ import annotations

import re
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pyspark

from onceward.testing.machine import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPARK_HOME: Final = Path(str(pyspark.__file__)).parent
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0


class Daemon:
    """A master or a worker, which can be killed, and started again where it was.

    Args:
        name: Its class below `org.apache.spark.deploy`.
        log: File to which its output is appended.
        environment: Its variables.
        arguments: Of its command line.
        ready: Pattern of the line of its log that says that it works.
    """

    def __init__(self, name: str, log: Path, environment: Mapping[str, str], arguments: list[str], ready: str) -> None:
        self._command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        self._log, self._environment, self._ready = log, dict(environment), ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of its JVM."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it works."""
        with self._log.open("ab") as output:
            began = output.tell()
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + _READY_SECONDS
        while re.search(self._ready, self._log.read_text()[began:]) is None:
            assert time.monotonic() < deadline, f"{self._ready} did not come: {self._log.read_text()[-2000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it, by force if it does not end by itself."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            self.kill()


class StandaloneCluster:
    """A master, and workers with a core each.

    Args:
        folder: For logs and the folders of applications.
        environment: Variables of its processes, which executors inherit.
        workers: Their number.
        memory: Of each worker, as Spark writes it.
        options: Java options of the master and the workers.
        apart: Whether each worker has a host of its own: Spark runs no task twice on one host to speculate.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        workers: int = 1,
        memory: str = "512m",
        options: str = "",
        apart: bool = False,
    ) -> None:
        variables = {
            **environment,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": options,
        }
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        master = ["--host", "127.0.0.1", "--webui-port", "0", "--port", str(port)]
        self.master = Daemon("master.Master", folder / "master.log", variables, master, "New state: (ALIVE|RECOVERING)")
        self.workers = [
            Daemon(
                "worker.Worker",
                folder / f"worker-{number}.log",
                variables,
                [
                    *(
                        "--host",
                        f"127.0.0.{number + 1 if apart else 1}",
                        "--webui-port",
                        "0",
                        "--cores",
                        "1",
                        "--memory",
                        memory,
                    ),
                    *("--work-dir", f"{folder}/work-{number}", self.url),
                ],
                "Successfully registered with master",
            )
            for number in range(workers)
        ]

    @contextmanager
    def running(self) -> Iterator[StandaloneCluster]:
        """Start it, and stop it when the block ends."""
        try:
            self.master.start()
            for worker in self.workers:
                worker.start()
            yield self
        finally:
            for daemon in (*self.workers, self.master):
                daemon.stop()


def is_executor(process: psutil.Process) -> bool:
    """Return whether a process is the JVM of an executor."""
    with suppress(psutil.Error):
        return "--driver-url" in process.cmdline()
    return False
