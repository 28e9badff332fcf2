"""The demo's driver process: the exactly-once query, and beside it the contrast, written Spark's own way.

Run as `python -m onceward.cli.demo.demo_driver`, with the variables of the kit's drivers. Both queries end when they
have read all there is.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward.connectors.database.sink import PostgresSink
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.spark import exactly_once
from onceward.core.errors import text_of
from onceward.testing.pipeline.endpoints import Addresses
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .scenario import AT_LEAST_ONCE, CENTS_PER_UNIT, EXACTLY_ONCE, SAID, SOURCE_TOPIC, checkpoint

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
    """Start a small local session, with the jars that Spark's own writers need."""
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


def placed_orders(spark: SparkSession, addresses: Addresses) -> DataFrame:
    """Read, parse, filter, enrich."""
    rates = sf.create_map(*[sf.lit(item) for pair in CENTS_PER_UNIT.items() for item in pair])
    stream = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", addresses.bootstrap_servers)
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
    """Yield each order with its user's total up to it; the total lives in Spark's state store."""
    import pandas as pd  # noqa: PLC0415 - on the executor only

    orders = pd.concat(list(frames)).sort_values("offset")
    before = state.get[0] if state.exists else 0
    orders["total"] = before + orders["cents"].cumsum()
    state.update((int(orders["total"].iloc[-1]),))
    yield orders[["order_id", "user", "cents", "total"]]


def start_exactly_once(spark: SparkSession, addresses: Addresses) -> StreamingQuery:
    """Start the pipeline: Kafka → running totals → Kafka and PostgreSQL, one decision per micro-batch."""
    totals = (
        placed_orders(spark, addresses)
        .groupBy("user")
        .applyInPandasWithState(running_totals, _TOTAL, "total long", "append", "NoTimeout")
    )
    return (
        exactly_once(
            totals,
            KafkaSink(
                "topic",
                bootstrap_servers=addresses.bootstrap_servers,
                topic=EXACTLY_ONCE,
                select=["cast(user as string) AS key", "to_json(struct(*)) AS value"],
            ),
            PostgresSink("table", dsn=addresses.dsn, table=EXACTLY_ONCE),
            checkpoint=str(checkpoint(addresses.folder, EXACTLY_ONCE)),
            pipeline="order-totals",
        )
        .queryName("exactly-once")
        .trigger(availableNow=True)
        .start()
    )


def start_contrast(spark: SparkSession, addresses: Addresses) -> StreamingQuery:
    """Start the same pipeline the usual way: foreachBatch with a JDBC append, and a plain producer."""
    address = urlsplit(addresses.dsn)
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
            "kafka.bootstrap.servers", addresses.bootstrap_servers
        ).option("topic", AT_LEAST_ONCE).save()
        batch.unpersist()

    return (
        placed_orders(spark, addresses)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint(addresses.folder, AT_LEAST_ONCE)))
        .queryName("at-least-once")
        .trigger(availableNow=True)
        .start()
    )


def say(what: str) -> None:
    """Print a message for the demo, in a line of its own: Spark's progress bars end in none."""
    print(f"\n{SAID}{what}", flush=True)  # noqa: T201 - into the log


def ends_well(query: StreamingQuery) -> bool:
    """Wait for the end of a query; return whether it ended without an error."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        reasons = re.findall(r"[\w.]+(?:Error|Exception): .+", text_of(error)) or [type(error).__name__]
        say(f"{query.name} failed: {reasons[-1][:150]}")
        return False
    return True


def main() -> int:
    """Run both queries to the end; 1 if one failed."""
    folder, servers, dsn = (os.environ[name] for name in ("PIPELINE_FOLDER", "KAFKA_BOOTSTRAP_SERVERS", "DATABASE_URL"))
    addresses = Addresses(Path(folder), servers, dsn)
    spark = spark_session("onceward-demo")
    queries = [start_exactly_once(spark, addresses), start_contrast(spark, addresses)]
    say("the driver started")
    with ThreadPoolExecutor() as pool:
        well = all(list(pool.map(ends_well, queries)))
    say("the driver ended" if well else "the driver gave up")
    spark.stop()
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
