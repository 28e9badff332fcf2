"""The recipes of docs/savepoints.md, as they are written there: a query with state, Kafka and PostgreSQL."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from onceward import KafkaSink, PostgresSink
from onceward.cli.main import app
from onceward.connectors.spark import exactly_once
from onceward.core.errors import EpochConflictError

from .spark_kit import Feed, finish, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
PAGE = (Path(__file__).parent.parent / "docs" / "savepoints.md").read_text()
JSON = ["to_json(struct(*)) AS value"]


class Shop:
    """Somebody who follows the recipes; `orders.py` is a function here, for a new JVM takes ten seconds."""

    def __init__(
        self, folder: Path, spark: SparkSession, kafka: KafkaServer, topic: Callable[..., str], dsn: str
    ) -> None:
        self.folder, self.spark, self.servers, self.dsn = folder, spark, kafka.bootstrap_servers, dsn
        self.feed = Feed(folder)
        self.topics = {name: topic(prefix=name) for name in ("paid", "paid-again", "paid-by-card")}
        for name in ("checkpoints", "savepoints", "other-machine"):
            (folder / name).mkdir()
        make_table(dsn, "paid")

    def orders(self, checkpoint: str, topic: str) -> None:
        """Each id once, however often it comes in: what was seen is in Spark's state store."""
        writer = exactly_once(
            self.feed.stream(self.spark).dropDuplicates(["id"]),
            KafkaSink("topic", bootstrap_servers=self.servers, topic=self.topics[topic], select=JSON),
            PostgresSink("table", dsn=self.dsn, table="paid"),
            checkpoint=str(self.folder / checkpoint),
            pipeline="orders",
        )
        finish(writer.trigger(availableNow=True).start())

    def follow(self, recipe: str, block: int = 0) -> None:
        section = PAGE.partition(f"\n### {recipe}\n")[2].partition("\n##")[0]
        for line in re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[block].splitlines():
            match shlex.split(line):
                case ["onceward", *arguments]:
                    with chdir(self.folder):
                        done = CliRunner().invoke(app, arguments)
                    assert done.exit_code == 0, (line, done.output, done.exception)
                case ["python", "orders.py", checkpoint, topic]:
                    self.orders(checkpoint, topic)
                case ["psql", "$DSN", "-c", statement]:
                    with psycopg.connect(self.dsn) as connection:
                        connection.execute(statement.encode())
                case command:
                    subprocess.run(command, cwd=self.folder, check=True)

    def topic(self, name: str) -> Counter[int]:
        return ids_in_topic(self.servers, self.topics[name])

    def assert_table(self, rows: int) -> None:
        assert ids_in_table(self.dsn, "paid") == once(rows)
        assert prepared_in(self.dsn) == 0


def between(first: int, end: int) -> Counter[int]:
    return Counter(range(first, end))


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession, kafka: KafkaServer, topic: Callable[..., str], dsn: str) -> Shop:
    return Shop(tmp_path, spark, kafka, topic, dsn)


@pytest.mark.pages
def test_the_recipes_of_the_page_are_exact(shop: Shop) -> None:
    shop.feed.add()
    shop.orders("checkpoints/orders", "paid")

    shop.feed.add()
    shop.follow("Back up")
    shop.assert_table(40)

    shop.feed.add()
    shop.follow("Upgrade a job, and go back")
    shop.assert_table(60)
    assert shop.topic("paid") == once(60)
    with chdir(shop.folder):
        restore = ["savepoint", "restore", "savepoints/before-release-2", "--checkpoint", "checkpoints/orders-again"]
        refused = CliRunner().invoke(app, [*restore, "--yes"])
    assert isinstance(refused.exception, EpochConflictError)
    assert "is of epoch 1, and the pipeline has decided epoch 2 since" in str(refused.exception)
    shop.follow("Upgrade a job, and go back", block=1)
    shop.assert_table(60)
    assert shop.topic("paid-again") == between(40, 60)

    shop.feed.add()
    shop.feed.rows -= 20
    shop.feed.add()  # the same ids again, which only the state that moved with the query knows
    shop.follow("Move to another machine")
    shop.assert_table(80)
    assert shop.topic("paid-again") == between(40, 80)
    for old in ("checkpoints/orders", "checkpoints/orders-again"):
        with pytest.raises(EpochConflictError, match="has ended here: a savepoint has moved the pipeline"):
            shop.orders(old, "paid-again")

    shop.feed.add()
    shop.follow("Move to another topic")
    shop.assert_table(100)
    assert shop.topic("paid-by-card") == between(80, 100)

    shop.feed.add()
    shop.follow("Pause and resume")
    shop.assert_table(120)
    assert shop.topic("paid-by-card") == between(80, 120)
    assert (shop.topic("paid"), shop.topic("paid-again")) == (once(60), between(40, 80))


@pytest.mark.parametrize("store", [False, True], ids=["log in the checkpoint", "log in a store of its own"])
def test_a_format_query_that_was_idle_goes_on_at_one_checkpoint_only(shop: Shop, *, store: bool) -> None:
    """Each of its micro-batches appends a START, so that of `create` does not stop it; the mark of `restore` does."""
    log = {"store": str(shop.folder / "log"), "pipeline": "orders"} if store else {}
    flags = ["--store", log["store"]] if store else []

    def start(checkpoint: str) -> StreamingQuery:
        writer = shop.feed.stream(shop.spark).writeStream.format("onceward-postgres").options(**log)
        writer = writer.option("dsn", shop.dsn).option("dbtable", "paid")
        return writer.option("checkpointLocation", str(shop.folder / checkpoint)).start()

    def savepoint(*arguments: str) -> Result:
        with chdir(shop.folder):
            return CliRunner().invoke(app, ["savepoint", *arguments, *flags, "--yes"])

    idle = start("checkpoints/orders")
    try:
        shop.feed.add()
        idle.processAllAvailable()
        assert savepoint("create", "savepoints/first", "--checkpoint", "checkpoints/orders").exit_code == 0
        shop.feed.add()
        idle.processAllAvailable()
        refused = savepoint("restore", "savepoints/first", "--checkpoint", "checkpoints/again")
        assert "has decided epoch 1 since" in str(refused.exception)
        assert savepoint("create", "savepoints/second", "--checkpoint", "checkpoints/orders").exit_code == 0
        assert savepoint("restore", "savepoints/second", "--checkpoint", "checkpoints/again").exit_code == 0
        shop.feed.add()
        with pytest.raises(StreamingQueryException, match="a savepoint has moved the"):
            idle.processAllAvailable()
    finally:
        idle.stop()
    restored = start("checkpoints/again")
    try:
        restored.processAllAvailable()
    finally:
        restored.stop()
    shop.feed.add()
    with pytest.raises(StreamingQueryException, match="a savepoint has moved the"):
        start("checkpoints/orders").processAllAvailable()
    shop.assert_table(60)
