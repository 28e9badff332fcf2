"""foreachBatch that writes one batch to a table (JDBC append) and to a topic (Spark's Kafka writer)."""

from pyspark.sql import DataFrame
from spark_common import SERVERS, jdbc, orders, run, session

URL, PROPERTIES = jdbc()


def write(batch: DataFrame, _: int) -> None:
    batch.persist()
    batch.write.mode("append").jdbc(URL, "out", properties=PROPERTIES)
    messages = batch.selectExpr("to_json(struct(*)) AS value").write.format("kafka")
    messages.option("kafka.bootstrap.servers", SERVERS).option("topic", "out").save()
    batch.unpersist()


run(orders(session()).writeStream.foreachBatch(write))
