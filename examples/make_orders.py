"""A thousand orders of 0 to 999 cents, and what they need: a topic for them, and a topic and a table to write them to.

    python examples/make_orders.py [INPUT OUTPUT]

INPUT is the topic of the orders (default: `orders`), OUTPUT names the other topic and the table (default: `paid`). What
does not exist is created. Each run adds a thousand orders.
"""

import os
import sys

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

servers, dsn = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["DATABASE_URL"]
orders, paid = sys.argv[1:3] or ("orders", "paid")

admin = AdminClient({"bootstrap.servers": servers})
missing = {orders, paid} - admin.list_topics(timeout=10).topics.keys()
for created in admin.create_topics([NewTopic(topic, 2) for topic in missing]).values() if missing else ():
    created.result()

with psycopg.connect(dsn) as connection:
    table = sql.SQL('CREATE TABLE IF NOT EXISTS {} ("user" text, cents bigint)').format(sql.Identifier(paid))
    connection.execute(table)

producer = Producer({"bootstrap.servers": servers})
for cents in range(1000):
    producer.produce(orders, key=f"user{cents % 7}", value=str(cents))
producer.flush()
print(f"1000 messages are in topic {orders}")
