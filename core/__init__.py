"""The protocol: decision log, transactions, coordination. Imports no pyspark, Kafka or psycopg."""

from .log import open_store

__all__ = ["open_store"]
