"""Spark's Kafka sink."""

from spark_common import SERVERS, orders, run, session

rows = orders(session()).selectExpr("to_json(struct(*)) AS value")
run(rows.writeStream.format("kafka").option("kafka.bootstrap.servers", SERVERS).option("topic", "out"))
