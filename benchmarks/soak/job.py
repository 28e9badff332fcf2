"""The driver of the soak: Kafka to PySpark to Kafka and PostgreSQL, an epoch a second."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from onceward import KafkaSink, PostgresSink, exactly_once

SOURCE, TARGET = "soak_in", "soak_out"


def main() -> None:
    """Run until killed."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    servers, folder = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["PIPELINE_FOLDER"]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "20")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    rows = (
        spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "50000")
        .load()
        .selectExpr("from_json(CAST(value AS string), 'number long, fed double') AS row")
        .select("row.*")
    )
    message = "to_json(struct(*)) AS value"
    query = (
        exactly_once(
            rows,
            KafkaSink("topic", bootstrap_servers=servers, topic=TARGET, select=[message]),
            PostgresSink("table", dsn=os.environ["DATABASE_URL"], table=TARGET),
            checkpoint=f"{folder}/checkpoint",
            pipeline=os.environ["PIPELINE_NAME"],
        )
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
