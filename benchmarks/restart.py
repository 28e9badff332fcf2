"""Down-time: from the start of a driver's process to the first rows that readers see, after an earlier run has ended.

    python benchmarks/restart.py [--rows 400] [--repeats 5] [--only 0 1 2 3 4] [--unpacked]

Each way has a topic, a target topic and a checkpoint of its own. Before each restart some rows arrive. The driver
(`restart_job.py`) is a new process with a new JVM, as after a deployment; it is killed after its first batch. Its time
is told from the start of the process to the last row that a read_committed consumer sees, and from the session being
there to the end of the batch, each against Spark's own source and sink. With `--unpacked`, the Python processes import
pyspark from folders with bytecode, as docs/deployment.md advises. The last way shows what any data source in Python
costs: one of constant rows (`pyspark_constant.py`), written by Spark's own sink, in an environment without onceward.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pyspark
from common import machine, median, show
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.testing.services import dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

HERE = Path(__file__).parent
PARTITIONS = 4
CONSTANT = "constant"
SPARKS = "Spark's Kafka source, Spark's Kafka sink"
WAYS = {
    SPARKS: ("kafka", "spark"),
    "KafkaSource, Spark's Kafka sink": ("onceward-kafka", "spark"),
    "Spark's Kafka source, KafkaSink": ("kafka", "onceward"),
    "KafkaSource, KafkaSink": ("onceward-kafka", "onceward"),
    "a Python source of constant rows, Spark's Kafka sink": (CONSTANT, "spark"),
}
STEPS = ["imports", "session", "load", "writer", "start", "batch"]


class Restart(NamedTuple):
    """Seconds of one restart."""

    visible: float
    """From the process's start to the last row that a read_committed consumer sees."""
    steps: dict[str, float]
    """What each step of the driver took."""
    batch: str
    """What Spark says of the first batch."""

    @property
    def after_session(self) -> float:
        """From the session being there to the end of the first batch."""
        return sum(self.steps[name] for name in STEPS[2:])


class Way:
    """A pipeline that is started again and again."""

    def __init__(
        self, servers: str, way: tuple[str, str], folder: Path, jars: str, environment: dict[str, str]
    ) -> None:
        self._servers, self._way, self._folder, self._jars = servers, way, folder, jars
        self._environment = {**os.environ, **environment}
        self._python = sys.executable
        if way[0] == CONSTANT:
            self._python = str(without_onceward(folder / "python"))
            self._environment["PYTHONPATH"] = str(HERE)
        self._environment["PYSPARK_PYTHON"] = self._python
        self._topic, self._target = f"in-{folder.name}", f"out-{folder.name}"
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics([NewTopic(n, PARTITIONS, 1) for n in (self._topic, self._target)]).values():
            made.result(30)
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"}
        )
        self._consumer.assign([confluent_kafka.TopicPartition(self._target, p, 0) for p in range(PARTITIONS)])

    def restart(self, rows: int) -> Restart:
        """Add rows, start a driver, and wait until all of them can be read."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers})
        for number in range(rows):
            producer.produce(self._topic, "x" * 100, str(number), number % PARTITIONS)
        producer.flush()
        command = [*self._way, self._servers, self._topic, self._target, str(self._folder), self._jars]
        began = time.time()
        with tempfile.TemporaryFile("w+") as errors:
            driver = subprocess.Popen(
                [self._python, str(HERE / "restart_job.py"), *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
            )
            seen, visible = 0, began
            while seen < rows and driver.poll() in (None, 0) and time.time() - began < 120:
                messages = self._consumer.consume(rows, timeout=0.05)
                seen, visible = seen + len(messages), time.time() if messages else visible
            try:
                told, _ = driver.communicate(timeout=60)
            finally:
                driver.kill()
            if driver.returncode or seen < rows:
                errors.seek(0)
                raise SystemExit(f"{self._way}: {seen} of {rows} rows\n{errors.read()[-3000:]}")
        lines = [line.split() for line in told.splitlines()]
        ends = {line[1]: float(line[2]) for line in lines if line[0] == "mark"}
        steps, last = {}, began
        for name in STEPS:
            steps[name], last = ends[name] - last, ends[name]
        batch = " ".join(" ".join(line[1:]) for line in lines if line[0] == "steps")
        return Restart(visible - began, steps, batch)


def unpacked(folder: Path) -> dict[str, str]:
    """Return the environment of a Spark made of links, in which the archives of pyspark are folders with bytecode."""
    home = Path(pyspark.__file__).parent
    lib = folder / "python" / "lib"
    lib.mkdir(parents=True)
    for archive in (home / "python" / "lib").glob("*.zip"):
        shutil.unpack_archive(archive, lib / archive.name)
        compileall.compile_dir(
            lib / archive.name, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    for path in (*home.iterdir(), *(home / "python").iterdir()):
        link = folder / path.relative_to(home)
        if not link.exists():
            link.symlink_to(path)
    return {"SPARK_HOME": str(folder)}


def without_onceward(folder: Path) -> Path:
    """Make a virtual environment with the packages of this one, but for onceward, and return its Python."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "onceward" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def table(found: dict[str, list[Restart]]) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| way | start to visible rows, s | times Spark's | session to end of batch, s | times Spark's | "
        + " | ".join(STEPS)
        + " |",
        "|---" * (5 + len(STEPS)) + "|",
    ]
    for name, runs in found.items():
        pairs = list(zip(runs, found[SPARKS], strict=True))
        cells = [
            f"{median([run.visible for run in runs]):.1f}",
            f"{median([ours.visible / theirs.visible for ours, theirs in pairs]):.2f}",
            f"{median([run.after_session for run in runs]):.1f}",
            f"{median([ours.after_session / theirs.after_session for ours, theirs in pairs]):.2f}",
            *(f"{statistics.median(run.steps[step] for run in runs):.1f}" for step in STEPS),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Start each way once for the first time, then all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400, help="of each restart")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--unpacked", action="store_true")
    parser.add_argument("--only", type=int, nargs="*", default=range(len(WAYS)), help="numbers of ways")
    arguments = parser.parse_args()
    if any(archive.is_dir() for archive in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")):
        parser.error("pyspark is in folders here, not in the archives to compare them with: install it anew")
    names = [name for number, name in enumerate(WAYS) if number in {0, *arguments.only}]
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as home, dev_services(Path(home) / "s") as services:
        jars = ",".join(str(jar) for jar in ensure_jars(PEER_JARS).glob("*.jar"))
        environment = unpacked(Path(home) / "spark") if arguments.unpacked else {}
        ways = {}
        for name in names:
            folder = Path(home) / str(len(ways))
            folder.mkdir()
            ways[name] = Way(services.bootstrap_servers, WAYS[name], folder, jars, environment)
        found: dict[str, list[Restart]] = {name: [] for name in names}
        for repeat in range(arguments.repeats + 1):
            for name in names[:: -1 if repeat % 2 else 1]:
                run = ways[name].restart(arguments.rows)
                print(
                    f"{name}: {run.visible:.1f} s, {run.after_session:.1f} s after the session; {run.batch}", flush=True
                )
                if repeat:  # the first start has no earlier run
                    found[name].append(run)
    show("Restarts", table(found), {"machine": machine(), "rows": arguments.rows, "repeats": arguments.repeats})


if __name__ == "__main__":
    main()
