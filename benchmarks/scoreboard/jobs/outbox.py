"""A transactional outbox by hand: Kafka to a table and, through an outbox, to a topic with an idempotent consumer.

Three threads, as three services would be. The first writes the row, its outbox entry and the source's offset in one
transaction. The relay publishes the entries in order and then deletes them. The consumer takes the topic into the table
`received`, where an event's key is unique.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from typing import TYPE_CHECKING

import confluent_kafka
import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS, DSN = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]
CONSUMER = {
    "bootstrap.servers": SERVERS,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
}
TABLES = """
CREATE TABLE IF NOT EXISTS positions (partition int PRIMARY KEY, next bigint NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (event bigserial PRIMARY KEY, id bigint, body text NOT NULL);
INSERT INTO positions SELECT n, 0 FROM generate_series(0, 1) AS n ON CONFLICT DO NOTHING;
"""


def ingest() -> None:
    consumer = confluent_kafka.Consumer({**CONSUMER, "group.id": "ingest"})
    with psycopg.connect(DSN) as database:
        rows = database.execute("SELECT partition, next FROM positions").fetchall()
        database.commit()
        consumer.assign([confluent_kafka.TopicPartition("orders", number, after) for number, after in rows])
        while True:
            for message in consumer.consume(50, 0.2):
                if message.error():
                    continue
                row, at = json.loads(message.value()), message.offset()
                moved = database.execute(
                    "UPDATE positions SET next = %s WHERE partition = %s AND next <= %s",
                    [at + 1, message.partition(), at],
                )
                if moved.rowcount:  # otherwise another instance has taken this message
                    values = [row["id"], row["amount"]]
                    database.execute("INSERT INTO out (id, amount) VALUES (%s, %s)", values)
                    database.execute("INSERT INTO outbox (id, body) VALUES (%s, %s)", [row["id"], json.dumps(row)])
            database.commit()


def relay() -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True})
    with psycopg.connect(DSN) as database:
        while True:
            entries = database.execute("SELECT event, id, body FROM outbox ORDER BY event LIMIT 50").fetchall()
            for _, key, body in entries:
                producer.produce("out", body.encode(), str(key).encode())
            if producer.flush(60):
                raise TimeoutError("Kafka did not take the events of the outbox")
            if entries:
                database.execute("DELETE FROM outbox WHERE event = ANY(%s)", [[entry[0] for entry in entries]])
            database.commit()
            threading.Event().wait(0 if entries else 0.1)


def receive() -> None:
    consumer = confluent_kafka.Consumer({**CONSUMER, "group.id": "receive", "session.timeout.ms": 6000})
    consumer.subscribe(["out"])
    with psycopg.connect(DSN) as database:
        while True:
            messages = [message for message in consumer.consume(50, 0.2) if not message.error()]
            for message in messages:
                row = json.loads(message.value())
                values = [row["id"], row["amount"]]
                database.execute("INSERT INTO received (id, amount) VALUES (%s, %s) ON CONFLICT DO NOTHING", values)
            database.commit()
            if messages:
                consumer.commit(asynchronous=False)


def forever(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # noqa: BLE001 - the supervisor starts it again
        traceback.print_exc()
        os._exit(1)


with psycopg.connect(DSN, autocommit=True) as setting_up:
    setting_up.execute("SELECT pg_advisory_lock(1)")
    setting_up.execute(TABLES)
threads = [threading.Thread(target=forever, args=[work]) for work in (ingest, relay, receive)]
for thread in threads:
    thread.start()
