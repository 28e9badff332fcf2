"""What every driver needs, imported once: they are forks of a process that has done no more than this."""

import confluent_kafka
import confluent_kafka.admin
import kafka
import pgpq
import psycopg
import pyarrow.dataset
import pyarrow.json
import pyspark.sql
import redis
import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite

import onceward.connectors.spark.write.handler
import onceward.core.engine.job

from . import drivers

__all__ = ["confluent_kafka", "drivers", "kafka", "onceward", "pgpq", "psycopg", "pyarrow", "pyspark", "redis"]
__all__ += ["sqlalchemy"]
