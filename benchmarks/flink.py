"""Flink's exactly-once sinks, as further ways of throughput.py: one JVM that copies the topic again and again."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from common import Bench, Run, cpu_seconds, cpu_seconds_of_services
from scoreboard.contestants import LOGS, OPENED, FlinkKafka, FlinkXa
from scoreboard.java import classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL = "3 s"
"""Between checkpoints: about as long as one of the two epochs takes in Spark."""


@contextmanager
def copies(lab: Bench, topic: str, rows: int, sink: type[FlinkKafka | FlinkXa]) -> Iterator[Callable[[str], Run]]:
    """Return a function that copies a topic of so many rows into the target of this name.

    The time is that of the job from its start in a JVM that runs already to its last commit, as Flink states it.
    """
    own = ("KafkaCopies.java",) if sink is FlinkKafka else ("Database.java", "XaCopies.java")
    path = classes(sink.name, (*sink.coordinates, *LOGS), "Copies.java", *own)
    environment = {
        **os.environ,
        "KAFKA_BOOTSTRAP_SERVERS": lab.servers,
        "DATABASE_URL": lab.dsn,
        "TOPIC": topic,
        "CHECKPOINT_INTERVAL": INTERVAL,
        "CHECKPOINTS": (lab.home / "flink").as_uri(),
    }
    command = ["java", "-Xmx2g", *OPENED, "-cp", path, own[-1].removesuffix(".java")]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def copy(target: str) -> Run:
            before, services = cpu_seconds(), cpu_seconds_of_services()
            print(target, file=process.stdin, flush=True)
            took = next(line for line in process.stdout if line.startswith("took "))
            cpu, served = cpu_seconds() - before, cpu_seconds_of_services() - services
            return Run(rows, int(took.split()[1]) / 1000, cpu, cpu - served, [])

        yield copy
        process.stdin.close()
