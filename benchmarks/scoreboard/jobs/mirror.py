"""Kafka Connect: MirrorMaker's source connector, from topic `orders` to topic `source.orders`. Argument: the jars."""

import os
import sys
from pathlib import Path

FOLDER, SERVERS = os.environ["PIPELINE_FOLDER"], os.environ["KAFKA_BOOTSTRAP_SERVERS"]
ONE_BROKER = ("", "offset-syncs.topic.", "checkpoints.topic.", "heartbeats.topic.")
STORAGE = ("config", "offset", "status")
PROPERTIES = {
    "clusters": "source, target",
    "source.bootstrap.servers": SERVERS,
    "target.bootstrap.servers": SERVERS,
    "target.exactly.once.source.support": "enabled",
    "source.consumer.isolation.level": "read_committed",
    "source->target.enabled": "true",
    "target->source.enabled": "false",
    "source->target.topics": "orders",
    "tasks.max": "2",
    **{f"{what}replication.factor": "1" for what in ONE_BROKER},
    **{f"{what}.storage.replication.factor": "1" for what in STORAGE},
    **{f"target.{what}.storage.replication.factor": "1" for what in STORAGE},
}

path = Path(FOLDER, "mirror.properties")
path.write_text("".join(f"{key} = {value}\n" for key, value in PROPERTIES.items()))
jvm = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
main = "org.apache.kafka.connect.mirror.MirrorMaker"
os.execvp("java", ["java", *jvm, "-cp", f"{sys.argv[1]}/*", main, str(path)])
