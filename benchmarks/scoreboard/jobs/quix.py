"""Quix Streams, topic to topic, exactly once."""

import os

from quixstreams import Application

app = Application(
    broker_address=os.environ["KAFKA_BOOTSTRAP_SERVERS"],
    consumer_group=os.environ["PIPELINE_NAME"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=1.0,
    state_dir=f"{os.environ['PIPELINE_FOLDER']}/state",
)
source, sink = (app.topic(name, value_serializer="json", value_deserializer="json") for name in ("orders", "out"))
app.dataframe(source).to_topic(sink)
app.run()
