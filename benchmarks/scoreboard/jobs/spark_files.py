"""Spark's file sink, Parquet."""

from spark_common import FOLDER, orders, run, session

run(orders(session()).writeStream.format("parquet").option("path", f"{FOLDER}/out"))
