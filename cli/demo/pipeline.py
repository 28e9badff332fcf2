"""The demo's driver process: the exactly-once query, and beside it the contrast, written Spark's own way.

Run as `python -m onceward.cli.demo.pipeline SETTINGS`. Both queries end when they have read all there is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward.connectors.database.sinks import PostgresSink
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.spark import exactly_once
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .scenario import AT_LEAST_ONCE, CENTS_PER_UNIT, EXACTLY_ONCE, SOURCE_TOPIC, DemoSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The driver lives for seconds only: time spent on optimising its code would not come back."""
_ORDERS_PER_BATCH = 8000
_ORDER = "order_id string, user int, amount int, currency string, status string"
_TOTAL = "order_id string, user int, cents long, total long"


def spark_session(name: str) -> SparkSession:
    """A small local session, with the jars that Spark's own writers need."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jars = ",".join(str(jar) for jar in ensure_jars(PEER_JARS).glob("*.jar"))
    spark = (
        SparkSession.builder.appName(name)
        .master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", _QUICK_START)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def placed_orders(spark: SparkSession, settings: DemoSettings) -> DataFrame:
    """Read, parse, filter, enrich."""
    rates = sf.create_map(*[sf.lit(item) for pair in CENTS_PER_UNIT.items() for item in pair])
    stream = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", SOURCE_TOPIC)
        .option("startingOffsets", "earliest")
        .option("kafkaConsumer.pollTimeoutMs", "180000")
        .option("maxOffsetsPerTrigger", str(_ORDERS_PER_BATCH))
        .load()
    )
    return (
        stream.select(sf.from_json(sf.col("value").cast("string"), _ORDER).alias("order"), "offset")
        .select("order.*", "offset")
        .where("status = 'placed'")
        .withColumn("cents", (sf.col("amount") * rates[sf.col("currency")]).cast("long"))
    )


def running_totals(_: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Each order with its user's total up to it; the total lives in Spark's state store."""
    import pandas as pd  # noqa: PLC0415 - on the executor only

    orders = pd.concat(list(frames)).sort_values("offset")
    before = state.get[0] if state.exists else 0
    orders["total"] = before + orders["cents"].cumsum()
    state.update((int(orders["total"].iloc[-1]),))
    yield orders[["order_id", "user", "cents", "total"]]


def start_exactly_once(spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
    """Kafka → running totals → Kafka and PostgreSQL, one decision per micro-batch."""
    totals = (
        placed_orders(spark, settings)
        .groupBy("user")
        .applyInPandasWithState(running_totals, _TOTAL, "total long", "append", "NoTimeout")
    )
    return (
        exactly_once(
            totals,
            KafkaSink(
                "topic",
                bootstrap_servers=settings.bootstrap_servers,
                topic=EXACTLY_ONCE,
                select=["cast(user as string) AS key", "to_json(struct(*)) AS value"],
            ),
            PostgresSink("table", dsn=settings.dsn, table=EXACTLY_ONCE),
            checkpoint=settings.checkpoint("exactly-once"),
            pipeline="order-totals",
        )
        .queryName("exactly-once")
        .trigger(availableNow=True)
        .start()
    )


def start_contrast(spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
    """The same orders the usual way: foreachBatch with a JDBC append, and a plain producer."""
    address = urlsplit(settings.dsn)
    url = f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}"
    properties = {
        "user": unquote(address.username or ""),
        "password": unquote(address.password or ""),
        "driver": "org.postgresql.Driver",
        "reWriteBatchedInserts": "true",
    }

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        rows = batch.select("order_id", "user", "cents")
        rows.write.mode("append").jdbc(url, AT_LEAST_ONCE, properties=properties)
        rows.select(sf.to_json(sf.struct("*")).alias("value")).write.format("kafka").option(
            "kafka.bootstrap.servers", settings.bootstrap_servers
        ).option("topic", AT_LEAST_ONCE).save()
        batch.unpersist()

    return (
        placed_orders(spark, settings)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", settings.checkpoint("at-least-once"))
        .queryName("at-least-once")
        .trigger(availableNow=True)
        .start()
    )


def report(settings: DemoSettings, **event: Any) -> None:
    """Tell the supervisor, in a line of its own."""
    with settings.events.open("a") as file:
        file.write(json.dumps({"at": time.time(), **event}) + "\n")


def watch(settings: DemoSettings, query: StreamingQuery) -> bool:
    """Report each batch of a query as it completes; return at its end whether that was a good one."""
    seen = -1
    while True:
        active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > seen:
                seen = progress.batchId
                report(settings, event="batch", query=query.name, batch=seen, rows=progress.numInputRows)
        if not active:
            break
        time.sleep(0.2)
    if error := query.exception():
        report(settings, event="failed", query=query.name, error=str(error)[:2000])
    return error is None


def main() -> int:
    """Run both queries to the end; 1 if one failed."""
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=DemoSettings)
    spark = spark_session("onceward-demo")
    queries = [start_exactly_once(spark, settings), start_contrast(spark, settings)]
    report(settings, event="started")
    with ThreadPoolExecutor() as pool:
        well = all(list(pool.map(partial(watch, settings), queries)))
    report(settings, event="ended" if well else "gave up")
    spark.stop()
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
