"""The job of the incidents: from a topic to a topic and a table, in the embedded engine.

Environment variables are its settings.

SERVERS, DSN, TOPIC_IN, TOPIC_OUT, TABLE, NAME, STORE: what it reads and writes. BAD: the number of a record that its
function refuses. HANG: the number of a record at which its function never ends. TIMEOUT: Kafka's transaction timeout in
seconds. ATTEMPTS: how often the engine restarts it (0).
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from onceward import CheckpointConfig, KafkaSink, KafkaSource, Pipeline, PostgresSink, RestartStrategy, open_store

_SETTINGS = os.environ


def parse(message: dict[str, Any]) -> dict[str, Any]:
    """Make a record of a message."""
    number = int(message["value"])
    if str(number) == _SETTINGS.get("BAD"):
        raise ValueError(f"bad record {number}")
    if str(number) == _SETTINGS.get("HANG"):
        time.sleep(3600)
    return {"n": number}


def main() -> None:
    """Run until it is stopped."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("onceward").setLevel(logging.INFO)
    name, servers = _SETTINGS["NAME"], _SETTINGS["SERVERS"]
    attempts = int(_SETTINGS.get("ATTEMPTS", "0"))
    pipeline = Pipeline(
        name,
        checkpointing=CheckpointConfig(interval=0.5),
        store=open_store(_SETTINGS["STORE"], pipeline=name),
        restart=RestartStrategy.fixed_delay(attempts=attempts, delay=1.0) if attempts else RestartStrategy.none(),
        commit_timeout=10.0,
    )
    topic = KafkaSource(bootstrap_servers=servers, topics=[_SETTINGS["TOPIC_IN"]], starting="earliest")
    numbers = pipeline.source(topic, uid="numbers").map(parse, uid="parse")
    timeout = float(_SETTINGS["TIMEOUT"]) if "TIMEOUT" in _SETTINGS else None
    numbers.map(lambda record: {"value": str(record["n"]).encode()}, uid="message").sink(
        KafkaSink("topic", bootstrap_servers=servers, topic=_SETTINGS["TOPIC_OUT"], transaction_timeout=timeout)
    )
    numbers.sink(PostgresSink("table", dsn=_SETTINGS["DSN"], table=_SETTINGS["TABLE"]))
    pipeline.run()


if __name__ == "__main__":
    main()
