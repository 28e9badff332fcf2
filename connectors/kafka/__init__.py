"""Kafka: settings for both clients, the transaction coordinator's client, the pool of producers.

Offsets, settings and the rules of a transaction can be imported without confluent-kafka and kafka-python; sink, source
and everything that asks a broker need them (`pip install onceward[kafka]`).
"""
