"""What the quickstart needs: three topics, a table, and a thousand orders. Each run adds a thousand more."""

import os

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers, dsn = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]

admin = AdminClient({"bootstrap.servers": servers})
missing = {"orders", "paid", "totals"} - admin.list_topics(timeout=10).topics.keys()
for created in admin.create_topics([NewTopic(topic, 2) for topic in missing]).values() if missing else ():
    created.result()

with psycopg.connect(dsn) as connection:
    connection.execute('CREATE TABLE IF NOT EXISTS paid ("user" text, cents bigint)')

producer = Producer({"bootstrap.servers": servers})
for cents in range(1000):
    producer.produce("orders", key=f"user{cents % 7}", value=str(cents))
producer.flush()
