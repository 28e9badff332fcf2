"""A driver of its own process, for tests of clusters: its sink kills, fails or delays its executor once.

Run as `python cluster_driver.py MASTER FOLDER DSN TABLE FAULT`. FAULT is `executor`, `decommission` (the executor is
told to leave), `task`, `prepared` or `writing` (subtask 0 names its machine and waits to be killed), `slow` (so that
Spark speculates), `speculated` (the same, with a task for each partition), `idle` (a trigger so long that Spark ends
idle workers), `scaled` (executors are allocated dynamically: each leaves between two epochs), `torn` (none, with a task
for each partition) or `none`; with `format` nothing fails, and the query writes through the format.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark.sql import SparkSession

from onceward import PostgresSink
from onceward.connectors.spark import exactly_once

if TYPE_CHECKING:
    from onceward.connectors.spark.write.parallelism import Writers

SLOW_SECONDS = {"slow": 30, "speculated": 120}
KILLED_SECONDS = 120
PAUSES = {"idle": 65, "scaled": 10}
"""Seconds between two epochs: Spark ends workers that were idle for a minute, and executors when it is told to."""
KILLS = ("prepared", "writing")
STRIKES = ("executor", "decommission", "slow", "speculated", "task")
SPECULATION = {"": "true", ".interval": "100ms", ".quantile": "0.5", ".multiplier": "1.1", ".minTaskRuntime": "1s"}
SCALED = {
    "enabled": "true",
    "shuffleTracking.enabled": "true",
    "shuffleTracking.timeout": "1s",
    "executorIdleTimeout": "1s",
    "maxExecutors": "2",
}


class FaultySink(PostgresSink):
    """A PostgresSink whose first subtask 0 is lost after it has prepared its transaction."""

    marker: str
    fault: str

    def pre_commit(self, transaction: Any) -> Any:
        if self.fault == "writing":
            self.wait_to_be_killed(transaction.context.subtask)
        committable = super().pre_commit(transaction)
        if self.fault == "prepared":
            self.wait_to_be_killed(committable.subtask)
        if committable.subtask == 0 and self.fault in STRIKES and not Path(self.marker).exists():
            Path(self.marker).write_text(f"epoch {committable.epoch}, attempt {committable.attempt}")
            # worker → pyspark.daemon → the executor's JVM
            executor = psutil.Process(os.getppid()).parent()
            assert executor is not None
            if self.fault == "executor":
                executor.kill()
            if self.fault == "decommission":
                executor.send_signal(signal.SIGPWR)  # "Registering PWR handler to trigger decommissioning"
                return committable
            if self.fault in SLOW_SECONDS:
                time.sleep(SLOW_SECONDS[self.fault])
                return committable
            raise RuntimeError("this attempt is lost after its pre-commit")
        return committable

    def wait_to_be_killed(self, subtask: int) -> None:
        marker = Path(self.marker)
        if subtask == 0 and not marker.exists():
            partial = marker.with_suffix(".partial")
            partial.write_text(socket.gethostname())
            partial.rename(marker)
            time.sleep(KILLED_SECONDS)


def main(master: str, folder: str, dsn: str, table: str, fault: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "2")
    if fault in SLOW_SECONDS:
        for name, value in SPECULATION.items():
            builder = builder.config(f"spark.speculation{name}", value)
    if fault == "decommission":
        builder = builder.config("spark.decommission.enabled", "true")
    if fault == "scaled":
        for name, value in SCALED.items():
            builder = builder.config(f"spark.dynamicAllocation.{name}", value)
    if fault != "idle":
        # each epoch gets new workers
        builder = builder.config("spark.python.worker.reuse", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).json(f"{folder}/feed")
    checkpoint = f"{folder}/checkpoint"
    if fault == "format":
        writer = stream.repartition(2).writeStream.format("onceward-postgres").option("dsn", dsn)
        writer = writer.option("dbtable", table).option("pipeline", "cluster").option("checkpointLocation", checkpoint)
    else:
        sink = FaultySink("table", dsn=dsn, table=table)
        sink.marker, sink.fault = f"{folder}/struck", fault
        writers: Writers = None if fault in ("torn", "speculated") else "auto"
        shared = fault in KILLS or writers is None
        store = dsn.replace("postgresql:", "postgresql+psycopg:") if shared else None
        of = {"checkpoint": checkpoint, "pipeline": "cluster", "store": store}
        writer = exactly_once(stream.repartition(2), sink, writers=writers, **of)
    if fault in PAUSES:
        query = writer.trigger(processingTime=f"{PAUSES[fault]} seconds").start()
        while query.isActive and not (query.lastProgress and query.lastProgress.batchId >= 1):
            time.sleep(1)
        query.stop()
    else:
        writer.trigger(availableNow=True).start().awaitTermination()
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    gone = [executors.apply(at).id() for at in range(executors.size()) if not executors.apply(at).isActive()]
    print("executors that left:", len(gone), file=sys.stderr)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:6])
