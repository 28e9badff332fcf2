"""How Spark and Kafka start quickly.

With archives of loaded classes (JEP 350) their JVMs start in about two thirds of the time. They are made once for each
Java, Spark, Kafka and version of this file, in pytest's cache. A JVM with another class path ignores its archive.
Spark's Python workers are forks of a process that has imported already what they need (`daemon/`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.core.kit.programs import find_java
from onceward.testing.services import KafkaServer
from onceward.testing.services.kafka import KAFKA_LOCK

if TYPE_CHECKING:
    from collections.abc import Mapping

DAEMON = Path(__file__).with_name("daemon")
# For short-lived JVMs: time spent on optimizing their code would not come back. For each file of a checkpoint, Spark's
# starts `readlink` and `chmod`, by default through another process.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
VARIABLES = {"spark": "JDK_JAVA_OPTIONS", "kafka": "KAFKA_JVM_PERFORMANCE_OPTS"}


def use_class_archives(folder: Path) -> None:
    """Set the variables with which JVMs start quickly, and make the archives that are missing."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    versions = java + version("pyspark").encode() + KAFKA_LOCK.read_bytes() + Path(__file__).read_bytes()
    key = hashlib.sha256(versions).hexdigest()[:12]
    archives = {program: folder / f"{program}-{key}.jsa" for program in VARIABLES}
    for making in [_make(program, file) for program, file in archives.items() if not file.exists()]:
        making.wait()
    for program, file in archives.items():
        use = f" -XX:SharedArchiveFile={file} -Xlog:disable" if file.exists() else ""
        os.environ[VARIABLES[program]] = QUICK_START + use


def with_warm_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Spark driver whose Python workers are forked from a warm process (`daemon/`)."""
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(DAEMON), environment.get("PYTHONPATH")]))}


def _make(program: str, archive: Path) -> subprocess.Popen[bytes]:
    options = f"{QUICK_START} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    environment = {**os.environ, VARIABLES[program]: options, "PYSPARK_PYTHON": sys.executable}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, __file__, program], env=environment, stdout=quiet, stderr=quiet)


def _load_the_classes_of_spark() -> None:
    """Run what most queries of the tests need: SQL, files, Python functions, a sink, a format."""
    from pyspark.sql import SparkSession

    from onceward import FileSink, exactly_once

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        spark.range(9).selectExpr("id", "CAST(id AS STRING) AS word").write.json(f"{folder}/in")
        files = spark.readStream.schema("id LONG, word STRING").json(f"{folder}/in").where("id >= 0")
        sink = FileSink("files", f"{folder}/files")
        twice = files.mapInArrow(lambda batches: batches, files.schema)
        named = {"path": f"{folder}/format", "pipeline": "format", "checkpointLocation": f"{folder}/2"}
        for writer in (
            exactly_once(twice, sink, checkpoint=f"{folder}/1", pipeline="function"),
            files.writeStream.format("onceward-files").options(**named),
        ):
            writer.trigger(availableNow=True).start().awaitTermination()
        assert spark.read.parquet(f"{folder}/files", f"{folder}/format").groupBy("word").count().count() == 9
    spark.stop()


def _load_the_classes_of_kafka() -> None:
    """Let a broker do what it does in most tests: a topic, a transaction, a group that reads it."""
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaServer(Path(folder))
        broker.start()
        broker.wait_ready()
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic("words", 2)])["words"].result()
        producer = Producer({**servers, "transactional.id": "words"})
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce("words", "word")
            end()
        reader = Consumer({**servers, "group.id": "words", "auto.offset.reset": "earliest"})
        reader.subscribe(["words"])
        while reader.poll(0.1) is None:
            pass
        reader.commit(asynchronous=False)
        reader.close()
        admin.describe_consumer_groups(["words"])["words"].result()
        broker.stop()


if __name__ == "__main__":
    {"spark": _load_the_classes_of_spark, "kafka": _load_the_classes_of_kafka}[sys.argv[1]]()
