"""Kafka: settings for both clients, the transaction coordinator's client, the pool of producers.

Importing this package needs neither confluent-kafka nor kafka-python; using it does (`pip install onceward[kafka]`).
"""
