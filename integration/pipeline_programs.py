"""Drivers for the kit's tests, without Spark. No relative imports: the kit runs a function's file by its path."""

from __future__ import annotations

import json
import os
import sys
import time

import confluent_kafka
import psycopg
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway


def copy_exactly_once() -> None:
    """The embedded engine: Kafka to Kafka and PostgreSQL."""
    from onceward import CheckpointConfig, KafkaSink, KafkaSource, Pipeline, PostgresSink, open_store

    servers, folder, name = (os.environ[v] for v in ("KAFKA_BOOTSTRAP_SERVERS", "PIPELINE_FOLDER", "PIPELINE_NAME"))
    pipeline = Pipeline(
        name, checkpointing=CheckpointConfig(interval=0.3), store=open_store(f"{folder}/log", pipeline=name)
    )
    orders = pipeline.source(
        KafkaSource(bootstrap_servers=servers, topics=["orders"], starting="earliest"), uid="in", parallelism=2
    )
    big = orders.map(lambda message: json.loads(message["value"]), uid="parse").filter(is_big, uid="big")
    big.map(lambda row: {"value": json.dumps(row)}, uid="encode").sink(
        KafkaSink(name="topic", bootstrap_servers=servers, topic="big")
    )
    big.sink(PostgresSink(name="table", dsn=os.environ["DATABASE_URL"], table="big_orders"))
    pipeline.run()


def is_big(row: dict[str, int]) -> bool:
    return row["amount"] >= 50


def copy_at_least_once() -> None:
    """As most consumers do it: write, then commit the offsets. A JVM works for it, as for a driver of PySpark."""
    parameters = GatewayParameters(port=launch_gateway(die_on_exit=True))
    number_in = JavaGateway(gateway_parameters=parameters).jvm.java.lang.Long.parseLong
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
            "group.id": "loose",
            "group.instance.id": "loose",  # so that a driver need not wait for the session of the one before it
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    producer = confluent_kafka.Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        count = 0
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            time.sleep(0.015)  # slower than it is fed, so that a fault always strikes while it works
            number = number_in(str(json.loads(message.value())["id"]))
            producer.produce("copies", json.dumps({"id": number}))
            producer.flush()
            connection.execute("INSERT INTO copies VALUES (%s)", [number])
            count += 1
            if count % 50 == 0:  # the offset of this row: after a death, at least this one is written again
                here = confluent_kafka.TopicPartition(message.topic(), message.partition(), message.offset())
                consumer.commit(offsets=[here], asynchronous=False)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
