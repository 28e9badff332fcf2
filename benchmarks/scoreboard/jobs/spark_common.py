"""What the Spark jobs share: a session, and the orders from Spark's own Kafka source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from onceward.testing.services.jars import PEER_JARS, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FOLDER = os.environ["PIPELINE_FOLDER"]
SERVERS = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
ROWS_PER_BATCH = 40


def session(config: Mapping[str, str] | None = None, jars: tuple[str, ...] = ()) -> SparkSession:
    """Start a session on two cores, with Spark's Kafka connector and PostgreSQL's JDBC driver."""
    peers = ",".join([*jars, *(str(jar) for jar in ensure_jars(PEER_JARS).glob("*.jar"))])
    builder = SparkSession.builder.master("local[2]").config("spark.jars", peers)
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def orders(spark: SparkSession, schema: str = "id long, amount long") -> DataFrame:
    """Read topic `orders` in small batches, so that a kill has many chances to hit one."""
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    stream = stream.option("subscribe", "orders").option("startingOffsets", "earliest")
    messages = stream.option("maxOffsetsPerTrigger", ROWS_PER_BATCH).load()
    return messages.selectExpr(f"from_json(CAST(value AS string), '{schema}') AS row").select("row.*")


def run(writer: DataStreamWriter) -> None:
    """Run a query until the process is killed."""
    writer.option("checkpointLocation", f"{FOLDER}/checkpoint").start().awaitTermination()


def jdbc() -> tuple[str, dict[str, str]]:
    """Return the URL and properties of the case's database."""
    address = urlsplit(os.environ["DATABASE_URL"])
    login = {"user": unquote(address.username or ""), "password": unquote(address.password or "")}
    url = f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}"
    return url, {**login, "driver": "org.postgresql.Driver"}
