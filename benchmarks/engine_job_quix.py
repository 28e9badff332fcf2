"""The job of engine_peer.py in Quix Streams: engine_job_quix.py SERVERS TOPIC_IN TOPIC_OUT FOLDER."""

import logging
import sys
from pathlib import Path
from typing import Any

from quixstreams import Application

logging.disable(logging.INFO)


def add(value: dict[str, Any], state: Any) -> dict[str, Any]:
    """Add an order to the user's sum so far."""
    total = state.get("total", 0) + value["amount"]
    state.set("total", total)
    return {"user": value["user"], "total": total}


def main(servers: str, topic_in: str, topic_out: str, folder: str) -> None:
    """Run until it is killed."""
    app = Application(
        broker_address=servers,
        consumer_group=Path(folder).name,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=1.0,
        state_dir=folder,
    )
    source = app.topic(topic_in, value_deserializer="json", key_deserializer="bytes")
    sink = app.topic(topic_out, value_serializer="json", key_serializer="bytes")
    app.dataframe(source).apply(add, stateful=True).to_topic(sink)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
