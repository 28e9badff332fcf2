"""A driver that has a Spark Connect server of its own: Kafka to Kafka, PostgreSQL and files, until it is killed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from onceward import FileSink, KafkaSink, PostgresSink, exactly_once
from onceward.testing.services.jars import PEER_JARS, ensure_jars

sys.path.insert(0, str(Path(__file__).parent.parent))

from integration.connect_kit import ConnectServer, remote_functions


def end_with(server: ConnectServer) -> None:
    """End this process with the server: awaitTermination would try for minutes to reach it."""
    server.wait()
    os._exit(1)


def main() -> None:
    servers, folder = os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["PIPELINE_FOLDER"]
    settings = {"spark.jars": ",".join(map(str, ensure_jars(PEER_JARS).glob("*.jar"))), "spark.ui.enabled": "false"}
    server = ConnectServer(Path(folder) / f"server-{os.getpid()}", os.environ, settings, own_group=False)
    server.start()
    threading.Thread(target=end_with, args=[server], daemon=True).start()
    with remote_functions():
        words = (
            server.session()
            .readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", "numbers")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "200")
            .load()
            .selectExpr("CAST(get_json_object(CAST(value AS string), '$.id') AS long) AS id")
            .selectExpr("id", "concat('w', id) AS word")
        )
        query = exactly_once(
            words,
            KafkaSink(name="topic", bootstrap_servers=servers, topic="words", select=["to_json(struct(*)) AS value"]),
            PostgresSink(name="table", dsn=os.environ["DATABASE_URL"], table="words"),
            FileSink("files", f"{folder}/files"),
            checkpoint=f"{folder}/checkpoint",
            pipeline=os.environ["PIPELINE_NAME"],
        ).start()
        try:
            query.awaitTermination()
        finally:
            server.kill()


if __name__ == "__main__":
    main()
