"""Kafka to Kafka in the embedded engine, step by step.

    python examples/engine_kafka.py SERVERS TOPIC_IN TOPIC_OUT FOLDER

Prints each durable step as it happens: the transaction begins at the first row, is prepared at the barrier, the next
one begins; all have acknowledged, the decision is written, the transaction is committed, and only then it shows.
"""

import sys

from onceward import KafkaSink, KafkaSource, MemoryBackend, Pipeline, open_store
from onceward.testing.kill_points import Step, hooked

TOLD = {
    Step.BEGIN_AFTER: "a transaction begins at the first row",
    Step.PRE_COMMIT_BEFORE: "the barrier has arrived at the sink",
    Step.PRE_COMMIT_AFTER: "the transaction is flushed and prepared",
    Step.ACKNOWLEDGED: "all tasks have acknowledged",
    Step.DECIDE_AFTER: "the decision is durable: from now on the transaction will be committed, whatever dies",
    Step.COMMIT_AFTER: "the transaction is committed, and shows",
    Step.COMPLETE_AFTER: "the checkpoint is completed; sources and sinks are told",
}


def main(servers: str, topic_in: str, topic_out: str, folder: str) -> None:
    """Copy what the topic holds."""

    def tell(step: Step) -> None:
        if step in TOLD:
            print(f"{step:24} {TOLD[step]}", flush=True)

    pipeline = Pipeline("copy", store=open_store(f"{folder}/log"), backend=MemoryBackend())
    source = KafkaSource(bootstrap_servers=servers, topics=[topic_in], starting="earliest", ending="latest")
    copies = pipeline.source(source, uid="in").map(lambda row: {"key": row["key"], "value": row["value"]}, uid="copy")
    copies.sink(KafkaSink(name="out", bootstrap_servers=servers, topic=topic_out))
    with hooked(tell):
        pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
