"""A Spark JVM that outlives the Python drivers, so that each of thousands need not start one.

`python -m integration.crash_matrix.spark_host FOLDER` starts a session and runs until its input is closed. Drivers
attach to it as notebooks do to a shared one. Its Python workers, and the processes in which a format's START and
commit run, pass the trap (startup/sitecustomize.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..conftest import spark_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]
_STARTUP = Path(__file__).with_name("startup")
_START_SECONDS = 600.0


class Gateway(NamedTuple):
    """How a driver reaches the JVM."""

    port: str
    secret: str


@contextmanager
def spark_hosts(folders: Sequence[Path], trap: Path, ports: Sequence[int]) -> Iterator[list[Gateway]]:
    """A JVM for each folder for the time of the block, started together.

    Args:
        folders: For their files and logs.
        trap: The trap's folder.
        ports: Of the services.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (_STARTUP, _ROOT, _ROOT / "src"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "CRASH_MATRIX_TRAP": os.pathsep.join([str(trap), *map(str, ports)]),
    }
    with ExitStack() as stack:
        yield [
            _gateway(folder, process)
            for folder, process in [(folder, stack.enter_context(_host(folder, environment))) for folder in folders]
        ]


@contextmanager
def _host(folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", __name__, str(folder)]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _gateway(folder: Path, process: subprocess.Popen[bytes]) -> Gateway:
    until = time.monotonic() + _START_SECONDS
    while not (folder / "gateway").exists():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"Spark did not start: {(folder / 'log').read_text()[-3000:]}")
        time.sleep(0.1)
    return Gateway(*(folder / "gateway").read_text().split())


def _serve(folder: Path) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("crash matrix")
    for key, value in spark_settings(folder).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    gateway: Any = session.sparkContext._gateway
    partial = folder / "gateway.partial"
    parameters = gateway.java_parameters
    partial.write_text(f"{parameters.port} {parameters.auth_token}")
    partial.rename(folder / "gateway")
    sys.stdin.read()
    session.stop()


def attach(gateway: Gateway) -> SparkSession:
    """A session of this process in a JVM that another one has started."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_GATEWAY_PORT": gateway.port, "PYSPARK_GATEWAY_SECRET": gateway.secret}
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    link: Any = launch_gateway()
    context = link.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = link.jvm.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jvm=link.jvm, _jconf=java.getConf())
    return SparkSession(SparkContext(gateway=link, jsc=java, conf=conf))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
