"""Delta Lake: foreachBatch with txnAppId and txnVersion. Argument: the folder of Delta's jars."""

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from spark_common import FOLDER, orders, run, session

JARS = tuple(str(jar) for jar in Path(sys.argv[1]).glob("delta-*.jar"))
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def write(batch: DataFrame, batch_id: int) -> None:
    delta = batch.write.format("delta").mode("append")
    delta.option("txnAppId", "orders").option("txnVersion", batch_id).save(f"{FOLDER}/out")


run(orders(session(DELTA, JARS)).writeStream.foreachBatch(write))
