"""The job of engine_peer.py on whole record batches: engine_job_batches.py SERVERS TOPIC_IN TOPIC_OUT FOLDER.

The newest total of each user in a batch, not one for each order: what a compacted topic or an upsert needs.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
from engine_job import new_pipeline
from pyarrow import json

from onceward import KafkaSink, KafkaSource

ORDER = pa.schema({"user": pa.string(), "amount": pa.int64()})


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse the orders of a batch, which are JSON, all at once."""
    text = b"\n".join(batch["value"].to_pylist())
    read = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    only = json.ParseOptions(explicit_schema=ORDER, unexpected_field_behavior="ignore")
    [orders] = json.read_json(pa.BufferReader(text), read, only).to_batches()  # one block, one batch
    return orders


def messages(totals: pa.RecordBatch) -> pa.RecordBatch:
    """Return a Kafka message for each total."""
    user, total = totals["user"], pc.cast(totals["total"], pa.string())
    value = pc.binary_join_element_wise('{"user": "', user, '", "total": ', total, "}", "")
    return pa.RecordBatch.from_pydict({"key": pc.cast(user, pa.binary()), "value": pc.cast(value, pa.binary())})


def main(servers: str, topic_in: str, topic_out: str, folder: str) -> None:
    """Run until it is killed."""
    pipeline = new_pipeline(folder)
    source = KafkaSource(bootstrap_servers=servers, topics=[topic_in], starting="earliest")
    orders = pipeline.source(source, uid="in").map_batches(parse)
    totals = orders.key_by("user").aggregate({"total": ("amount", "sum")}, uid="sum").map_batches(messages)
    totals.sink(KafkaSink(name="out", bootstrap_servers=servers, topic=topic_out))
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
