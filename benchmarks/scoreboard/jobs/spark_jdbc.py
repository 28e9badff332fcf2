"""foreachBatch with Spark's JDBC writer, mode append."""

from pyspark.sql import DataFrame
from spark_common import jdbc, orders, run, session

URL, PROPERTIES = jdbc()


def write(batch: DataFrame, _: int) -> None:
    batch.write.mode("append").jdbc(URL, "out", properties=PROPERTIES)


run(orders(session()).writeStream.foreachBatch(write))
