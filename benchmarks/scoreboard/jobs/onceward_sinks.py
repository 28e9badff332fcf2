"""onceward's sinks below Spark's own Kafka source. Arguments: kafka, postgres, files."""

import os
import sys

from spark_common import FOLDER, SERVERS, orders, session

from onceward import FileSink, KafkaSink, PostgresSink, exactly_once

SINKS = {
    "kafka": lambda: KafkaSink("topic", bootstrap_servers=SERVERS, topic="out", select=["to_json(struct(*)) AS value"]),
    "postgres": lambda: PostgresSink("table", dsn=os.environ["DATABASE_URL"], table="out"),
    "files": lambda: FileSink("files", f"{FOLDER}/out"),
}

sinks = [SINKS[name]() for name in sys.argv[1:]]
query = exactly_once(orders(session()), *sinks, checkpoint=f"{FOLDER}/checkpoint", pipeline=os.environ["PIPELINE_NAME"])
query.start().awaitTermination()
