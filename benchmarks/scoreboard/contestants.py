# ruff: noqa: D101, RUF012 - a contestant is described by its title; settings are declared once
"""Who is on the scoreboard: the command, the outputs, the settings and where they come from.

Everybody does the same job: the rows of topic `orders` go to a topic, a table or a folder named `out`.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table
from onceward.testing.services.jars import PEER_JARS, ensure_jars, read_lock

from .files import Files, files_of_delta, files_of_spark, files_that_are_visible
from .java import CACHE, classes, jars
from .watch import FolderWatch, TableWatch, TopicWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.testing.pipeline import Addresses, Endpoint, Row

    from .watch import Watch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTITIONS = 2
TOPIC = KafkaTopic("out", partitions=PARTITIONS)
TABLE = Table("out", "id bigint, amount bigint")
SPARK_DOCS = "https://spark.apache.org/docs/latest/streaming"


class Contestant(PipelineTest):
    """A pipeline, set up as its own documentation recommends for its strongest guarantee.

    Attributes:
        name: For the command line.
        title: For the table.
        settings: What was set, and why.
        documentation: Where that is recommended or promised.
        note: What explains a result.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    settings: ClassVar[str]
    documentation: ClassVar[Mapping[str, str]]
    note: ClassVar[str] = ""
    services = "local"
    inputs = KafkaTopic("orders", partitions=PARTITIONS, key="id")
    row_count = 600
    feed_seconds = 6.0
    timeout = 300.0
    environment = {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def row(self, number: int) -> Row:
        return {"id": number, "amount": number * 37 % 100}

    @classmethod
    def get_ready(cls) -> None:
        """Fetch and build what it needs."""
        ensure_jars(PEER_JARS)

    @classmethod
    def versions(cls) -> str:
        """Return the versions that are measured."""
        jars = {jar.artifact: jar.version for jar in read_lock(PEER_JARS)}
        return f"pyspark {version('pyspark')}, kafka-clients {jars['kafka-clients']}"

    def watch(self, addresses: Addresses) -> list[Watch]:
        """Watch every output."""
        watches: list[Watch] = []
        for output in self.outputs if isinstance(self.outputs, tuple) else (self.outputs,):
            watches += self._watch(output, addresses)
        return watches

    def _watch(self, output: Endpoint, addresses: Addresses) -> Sequence[Watch]:
        if isinstance(output, KafkaTopic):
            return [TopicWatch(addresses, output.name, output.partitions)]
        if isinstance(output, Table):
            return [TableWatch(addresses, output.name)]
        return [FolderWatch(addresses.folder / "out", "*.parquet")]


def job(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the path of a program in the folder `jobs`."""
    return (sys.executable, str(HERE / "jobs" / name), *arguments)


class SparkKafka(Contestant):
    name, title = "spark-kafka", "Spark's Kafka sink"
    command = job("spark_kafka.py")
    outputs = TOPIC
    settings = (
        "Defaults: the producer is idempotent and waits for all in-sync replicas (`enable.idempotence=true`, "
        "`acks=all`). There is no stronger setting; the guide promises at least once."
    )
    documentation = {
        "Structured Streaming + Kafka Integration Guide": f"{SPARK_DOCS}/structured-streaming-kafka-integration.html"
    }


class SparkJdbc(Contestant):
    name, title = "spark-jdbc", "foreachBatch, JDBC append"
    command = job("spark_jdbc.py")
    outputs = TABLE
    settings = (
        'Spark\'s JDBC writer, mode "append", defaults: one transaction for each partition. The guide promises at '
        "least once for foreachBatch."
    )
    documentation = {"foreachBatch": f"{SPARK_DOCS}/apis-on-dataframes-and-datasets.html"}


class SparkBoth(Contestant):
    name, title = "spark-both", "foreachBatch, JDBC append and Kafka"
    command = job("spark_both.py")
    outputs = (TABLE, TOPIC)
    settings = (
        "The batch is persisted, appended to the table by JDBC, then written to the topic, as the guide shows it."
    )
    documentation = {"foreachBatch": f"{SPARK_DOCS}/apis-on-dataframes-and-datasets.html"}


class SparkBatchId(Contestant):
    name, title = "spark-batch-id", "foreachBatch, deduplicated by batch id"
    command = job("spark_batch_id.py")
    outputs = TABLE
    settings = (
        "By hand: the driver collects the batch and writes its rows and its id in one transaction; an id that is "
        "there already is skipped. The guide names the batch id for that purpose."
    )
    documentation = {"foreachBatch": f"{SPARK_DOCS}/apis-on-dataframes-and-datasets.html"}


class SparkUpsert(Contestant):
    name, title = "spark-upsert", "foreachBatch, upsert by key"
    command = job("spark_upsert.py")
    outputs = Table("out", "id bigint PRIMARY KEY, version bigint")
    settings = (
        "The newest row of each key in the batch, `INSERT … ON CONFLICT DO UPDATE`, one transaction for each "
        "partition. 50 keys get 12 updates each."
    )
    documentation = {
        "foreachBatch": f"{SPARK_DOCS}/apis-on-dataframes-and-datasets.html",
        "INSERT": "https://www.postgresql.org/docs/18/sql-insert.html",
    }

    def row(self, number: int) -> Row:
        return {"id": number % 50, "version": number}

    def expected(self, rows: list[Row]) -> list[Row]:
        newest: dict[int, int] = {}
        for row in rows:
            newest[row["id"]] = max(row["version"], newest.get(row["id"], 0))
        return [{"id": key, "version": value} for key, value in newest.items()]

    def _watch(self, output: Endpoint, addresses: Addresses) -> Sequence[Watch]:
        return [TableWatch(addresses, output.name, version="version")]


class SparkFiles(Contestant):
    name, title = "spark-files", "Spark's file sink"
    command = job("spark_files.py")
    outputs = (
        Files("files, read by Spark", files_of_spark),
        Files("files, read by others", files_that_are_visible),
    )
    settings = (
        "Parquet, defaults. The guide promises exactly once; the list of good files is in the folder "
        "`_spark_metadata`, which Spark alone reads. So the folder is judged twice."
    )
    note = (
        "Spark writes to the file's final name. A driver that dies meanwhile leaves a file without a footer, or a "
        "complete one whose rows the next attempt writes again under another name."
    )
    documentation = {"Output sinks": f"{SPARK_DOCS}/apis-on-dataframes-and-datasets.html#output-sinks"}


DELTA = ("io.delta:delta-spark_4.2_2.13:4.4.0",)


class Delta(Contestant):
    name, title = "delta", "Delta Lake, txnAppId and txnVersion"
    command = job("spark_delta.py", str(CACHE / "delta"))
    outputs = Files("files, read as a Delta table", files_of_delta)
    settings = (
        "foreachBatch; each batch is appended with `txnAppId` and the batch's id as `txnVersion`, as the page on "
        "idempotent writes says. `snapshotPartitions=2`, because two cores need no more."
    )
    documentation = {
        "Idempotent table writes in foreachBatch": (
            "https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch"
        )
    }

    @classmethod
    def get_ready(cls) -> None:
        super().get_ready()
        jars("delta", DELTA)

    @classmethod
    def versions(cls) -> str:
        return f"pyspark {version('pyspark')}, delta-spark {DELTA[0].rpartition(':')[2]}"

    def _watch(self, output: Endpoint, addresses: Addresses) -> Sequence[Watch]:
        return [FolderWatch(addresses.folder / "out" / "_delta_log", "*.json")]


POSTGRES_DRIVER = "org.postgresql:postgresql:42.7.7"
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.time")]
"""What Flink needs of a JVM."""
LOGS = ("org.apache.logging.log4j:log4j-slf4j-impl:2.24.3", "org.apache.logging.log4j:log4j-core:2.24.3")


class Flink(Contestant):
    """A Flink job with a local cluster; after each kill it continues from the newest complete checkpoint."""

    coordinates: ClassVar[tuple[str, ...]]
    sources: ClassVar[tuple[str, ...]]
    common: ClassVar[str] = (
        "a checkpoint each second, kept; parallelism 2; a restarted job continues from the newest complete checkpoint "
        "under the same job id, as with `standalone-job.sh --job-id … --fromSavepoint …`"
    )

    @classmethod
    def get_ready(cls) -> None:
        classes(cls.name, (*cls.coordinates, *LOGS), "Common.java", *cls.sources)

    @classmethod
    def versions(cls) -> str:
        return ", ".join(" ".join(coordinate.split(":")[1:]) for coordinate in cls.coordinates)


def flink(name: str, main: str) -> tuple[str, ...]:
    """Return the command of a Flink job."""
    folder = CACHE / name
    return (
        "java",
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *OPENED,
        "-cp",
        f"{folder}/classes:{folder}/*",
        main,
    )


class FlinkKafka(Flink):
    name, title = "flink-kafka", "Flink's KafkaSink, exactly once"
    command = flink("flink-kafka", "KafkaJob")
    outputs = TOPIC
    coordinates = (
        "org.apache.flink:flink-clients:2.2.0",
        "org.apache.flink:flink-connector-base:2.2.0",
        "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
    )
    sources = ("KafkaJob.java",)
    settings = (
        "`DeliveryGuarantee.EXACTLY_ONCE`, a transactional id prefix of its own, `transaction.timeout.ms` of 10 "
        f"minutes (it should be much longer than a checkpoint and a restart take); {Flink.common}."
    )
    documentation = {
        "Kafka sink, fault tolerance": (
            "https://nightlies.apache.org/flink/flink-docs-release-2.2/docs/connectors/datastream/kafka/#fault-tolerance"
        )
    }


JDBC_PAGE = {
    "JdbcSink, exactly once": "https://nightlies.apache.org/flink/flink-docs-release-1.20/docs/connectors/datastream/jdbc/"
}


class FlinkXa(Flink):
    name, title = "flink-xa", "Flink 1.20, JDBC XA sink"
    command = flink("flink-xa", "XaJob")
    outputs = TABLE
    coordinates = (
        "org.apache.flink:flink-clients:1.20.3",
        "org.apache.flink:flink-connector-base:1.20.3",
        "org.apache.flink:flink-connector-kafka:3.4.0-1.20",
        "org.apache.flink:flink-connector-jdbc:3.3.0-1.20",
        POSTGRES_DRIVER,
    )
    sources = ("Database.java", "XaJob.java")
    settings = (
        "`JdbcSink.exactlyOnceSink` with `withMaxRetries(0)` and `withTransactionPerConnection(true)`, which "
        f"PostgreSQL needs; {Flink.common}."
    )
    documentation = JDBC_PAGE


class FlinkJdbc(Flink):
    name, title = "flink-jdbc", "Flink 2, exactly-once JDBC sink"
    command = flink("flink-jdbc", "JdbcJob")
    outputs = TABLE
    coordinates = (
        "org.apache.flink:flink-clients:2.0.1",
        "org.apache.flink:flink-connector-base:2.0.1",
        "org.apache.flink:flink-connector-kafka:4.0.1-2.0",
        "org.apache.flink:flink-connector-jdbc-core:4.0.0-2.0",
        POSTGRES_DRIVER,
    )
    sources = ("Database.java", "JdbcJob.java")
    settings = (
        "`JdbcSink.builder()…buildExactlyOnce` with `withMaxRetries(0)` and `withTransactionPerConnection(true)`; "
        f"Flink 2.0, because the newest release of the connector is for it; {Flink.common}."
    )
    documentation = JDBC_PAGE
    note = (
        "in connector 4.0.0, `JdbcWriter.prepareCommit` prepares the transaction and resets `pendingRecords`; "
        "`snapshotState`, which comes next, then takes it for empty and commits it, before the checkpoint is complete. "
        "If the job dies in between, the rows are written again from the checkpoint before."
    )


class OncewardKafka(Contestant):
    name, title = "onceward-kafka", "onceward, Kafka"
    command = job("onceward_sinks.py", "kafka")
    outputs = TOPIC
    settings = "`exactly_once(…)` of this version with a KafkaSink, defaults."
    documentation = {"exactly_once": "exactly-once.md"}


class OncewardPostgres(Contestant):
    name, title = "onceward-postgres", "onceward, PostgreSQL"
    command = job("onceward_sinks.py", "postgres")
    outputs = TABLE
    settings = "`exactly_once(…)` of this version with a PostgresSink, defaults (prepared transactions)."
    documentation = {"exactly_once": "exactly-once.md"}


class OncewardBoth(Contestant):
    name, title = "onceward-both", "onceward, Kafka and PostgreSQL"
    command = job("onceward_sinks.py", "kafka", "postgres")
    outputs = (TABLE, TOPIC)
    settings = "`exactly_once(…)` of this version with a KafkaSink and a PostgresSink, defaults."
    documentation = {"exactly_once": "exactly-once.md"}


class OncewardFiles(Contestant):
    name, title = "onceward-files", "onceward, files"
    command = job("onceward_sinks.py", "files")
    outputs = Files("files, read by others", files_that_are_visible)
    settings = "`exactly_once(…)` of this version with a FileSink (Parquet), defaults."
    documentation = {"exactly_once": "exactly-once.md"}


class Outbox(Contestant):
    name, title = "outbox", "Transactional outbox, by hand"
    command = job("outbox.py")
    outputs = (TABLE, TOPIC, Table("received", "id bigint PRIMARY KEY, amount bigint"))
    settings = (
        "Row, outbox entry and source offset in one transaction; a relay publishes in order, then deletes; the "
        "consumer is idempotent (table `received`, unique key). The topic alone is at least once, as the pattern says."
    )
    documentation = {"Transactional outbox": "https://microservices.io/patterns/data/transactional-outbox.html"}

    @classmethod
    def versions(cls) -> str:
        return f"confluent-kafka {version('confluent-kafka')}, psycopg {version('psycopg')}"


CONNECT = (
    "org.apache.kafka:connect-mirror:4.3.1",
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.slf4j:slf4j-simple:2.0.17",
)


class KafkaConnect(Contestant):
    name, title = "kafka-connect", "Kafka Connect (MirrorMaker), exactly once"
    command = job("mirror.py", str(CACHE / "connect"))
    outputs = KafkaTopic("source.orders", partitions=PARTITIONS)
    settings = (
        "MirrorMaker's own cluster of one worker, `exactly.once.source.support=enabled`, `isolation.level="
        "read_committed`. Connect offers exactly once for source connectors alone; this is the one that Apache Kafka "
        "brings along."
    )
    documentation = {
        "Geo-replication, exactly once": "https://kafka.apache.org/42/operations/geo-replication-cross-cluster-data-mirroring"
    }

    @classmethod
    def get_ready(cls) -> None:
        jars("connect", CONNECT)

    @classmethod
    def versions(cls) -> str:
        return f"Kafka Connect {CONNECT[0].rpartition(':')[2]}"


QUIX = "3.28.1"


class Quix(Contestant):
    name, title = "quix", "Quix Streams, exactly once"
    command = (str(CACHE / "quix" / "bin" / "python"), str(HERE / "jobs" / "quix.py"))
    outputs = TOPIC
    settings = (
        '`processing_guarantee="exactly-once"`, a commit every second, everything else by default (so a transaction '
        "times out after 60 s)."
    )
    documentation = {"Processing guarantees": "https://github.com/quixio/quix-streams/blob/main/docs/configuration.md"}

    @classmethod
    def get_ready(cls) -> None:
        python = Path(cls.command[0])
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", CACHE / "quix"], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", f"quixstreams=={QUIX}"]
            subprocess.run(pip, check=True)

    @classmethod
    def versions(cls) -> str:
        show = "from importlib.metadata import version as v; print(v('quixstreams'), v('confluent-kafka'))"
        answer = subprocess.run([cls.command[0], "-c", show], check=True, capture_output=True, text=True)
        quix, client = answer.stdout.split()
        return f"quixstreams {quix}, confluent-kafka {client}"


CONTESTANTS: tuple[type[Contestant], ...] = (
    SparkKafka,
    SparkJdbc,
    SparkBoth,
    SparkBatchId,
    SparkUpsert,
    SparkFiles,
    Delta,
    FlinkKafka,
    FlinkXa,
    FlinkJdbc,
    KafkaConnect,
    Quix,
    Outbox,
    OncewardKafka,
    OncewardPostgres,
    OncewardBoth,
    OncewardFiles,
)
NOT_RUN: Mapping[str, str] = {
    "Kafka Connect with a JDBC sink": (
        "Connect's support for exactly once covers source connectors alone, so a sink connector promises no more than "
        "foreachBatch with an upsert, which is in the table"
    ),
    "Flink with high availability": (
        "it needs ZooKeeper or Kubernetes; the jobs here find their newest complete checkpoint themselves instead"
    ),
}
"""Why something is not in the table: by name for those above, by title for others."""
