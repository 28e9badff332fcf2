"""The embedded engine on a real Kafka and PostgreSQL, killed with SIGKILL at random, restarted at other parallelism.

The checker reads with a plain consumer and plain SQL, and shares no code with sources and sinks.
It is killed six times, and at night thirty times; `ONCEWARD_ENGINE_KILLS` is another number for nights.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from onceward.core.kit.crash_points import CRASH_VARIABLE, Step
from onceward.core.log import open_store, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(0)]
DRIVER = Path(__file__).with_name("engine_driver.py")
KILLS = int(os.environ.get("ONCEWARD_ENGINE_KILLS", "30"))
A_FEW_KILLS = 6
PARTITIONS = 3
USERS = 20
RATE = 400


class Orders(threading.Thread):
    """Produces orders until it is told to stop; each user's into one partition, in order."""

    def __init__(self, servers: str, topics: tuple[str, str]) -> None:
        super().__init__(daemon=True)
        self.topics = topics
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self.stopping = threading.Event()
        self.totals: dict[int, int] = {}

    def run(self) -> None:
        chance, sums = random.Random(7), Counter[str]()
        while not self.stopping.wait(0.1):
            for _ in range(RATE // 10):
                n, user, amount = len(self.totals), f"user{chance.randrange(USERS)}", chance.randint(1, 100)
                sums[user] += amount
                value = json.dumps({"n": n, "user": user, "amount": amount})
                self._producer.produce(self.topics[0], value.encode(), key=user.encode(), partition=hash_of(user))
                self.totals[n] = sums[user]
            self._producer.poll(0)
        assert self._producer.flush(30) == 0


def hash_of(user: str) -> int:
    """A user's partition."""
    return int(user.removeprefix("user")) % PARTITIONS


def in_table(dsn: str, table: str) -> list[tuple[int, int]]:
    with psycopg.connect(dsn) as connection:
        return [(n, total) for n, total in connection.execute(f"SELECT n, total FROM {table}").fetchall()]


class InTopic:
    """What a read_committed consumer sees, from the beginning."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "checker", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        self.rows: list[tuple[int, int]] = []

    def read(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for message in self._consumer.consume(1000, timeout=0.2):
                assert message.error() is None
                row = json.loads(message.value() or b"")
                self.rows.append((row["n"], row["total"]))


@pytest.fixture
def start(
    kafka: KafkaServer, dsn: str, driver_environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(topics: tuple[str, str], table: str, parallelism: int, crash: str = "") -> subprocess.Popen[str]:
        arguments = [kafka.bootstrap_servers, *topics, dsn, table, str(tmp_path), str(parallelism)]
        with (tmp_path / "driver.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments],
                env={**driver_environment, **({CRASH_VARIABLE: crash} if crash else {})},
                stdout=log,
                stderr=log,
                text=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def orders(kafka: KafkaServer, topic: Callable[..., str], dsn: str) -> Iterator[Orders]:
    """Orders that are sent to a topic, with the table for their totals."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE totals (n bigint, user_name text, total bigint)")
    orders = Orders(kafka.bootstrap_servers, (topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)))
    orders.start()
    yield orders
    orders.stopping.set()
    orders.join()


@pytest.mark.parametrize("kills", [A_FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_killed_again_and_again_nothing_is_missing_or_duplicated(
    kafka: KafkaServer,
    orders: Orders,
    dsn: str,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    *,
    kills: int,
):
    chance = random.Random(os.environ.get("ONCEWARD_SEED", "11"))
    for _ in range(kills):
        process = start(orders.topics, "totals", chance.choice([1, 2, 3, 4]))
        time.sleep(chance.uniform(0.8, 5.0))
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        process.kill()
        process.wait()
    orders.stopping.set()
    orders.join()
    last = start(orders.topics, "totals", 2)
    check(kafka, orders.topics[1], dsn, orders, last=last, folder=tmp_path)


def check(
    kafka: KafkaServer, topic: str, dsn: str, orders: Orders, *, last: subprocess.Popen[str], folder: Path
) -> None:
    """Wait until both targets have all rows, and see that they have each once."""
    expected = Counter(dict.fromkeys(orders.totals.items(), 1))
    seen = InTopic(kafka.bootstrap_servers, topic)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (
        len(seen.rows) < len(expected) or len(in_table(dsn, "totals")) < len(expected)
    ):
        seen.read(1.0)
        assert last.poll() is None, (folder / "driver.log").read_text()[-3000:]
    time.sleep(1.0)
    seen.read(2.0)
    report("kafka", expected, Counter(seen.rows))
    report("postgres", expected, Counter(in_table(dsn, "totals")))


def test_14_what_a_table_lost_of_a_visible_checkpoint_is_written_again(
    kafka: KafkaServer,
    orders: Orders,
    dsn: str,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
):
    """Killed when the topic has its part; then somebody rolls back what is prepared in the table."""
    store = open_store(str(tmp_path / "log"), pipeline=f"endured-{orders.topics[0]}")
    lost: list[Committable] = []
    for crash in range(1, 8):  # in some of these checkpoints, there are rows for the table
        first = start(orders.topics, "totals", 2, crash=f"{Step.COMMIT_AFTER}:{2 * crash + 1}")
        assert first.wait(60) == -signal.SIGKILL
        undone = read(store).undone
        lost = [c for c in undone.committables if c.sink == "rows"] if undone is not None else []
        if lost:
            break
    orders.stopping.set()
    orders.join()
    assert lost
    with psycopg.connect(dsn, autocommit=True) as connection:
        for committable in lost:
            connection.execute(f"ROLLBACK PREPARED '{committable.transaction}'".encode())
    check(kafka, orders.topics[1], dsn, orders, last=start(orders.topics, "totals", 2), folder=tmp_path)
    assert "lost transactions were written again with the same rows, in rows" in (tmp_path / "driver.log").read_text()


def report(target: str, expected: Counter[Any], seen: Counter[Any]) -> None:
    """Nothing missing, nothing duplicated."""
    missing, duplicated = expected - seen, seen - expected
    told = f"{target}: {expected.total()} expected, {seen.total()} seen, "
    told += f"{missing.total()} missing, {duplicated.total()} duplicated"
    sys.stdout.write(told + "\n")
    assert (missing.total(), duplicated.total()) == (0, 0), f"{told}: {list(missing)[:5]}, {list(duplicated)[:5]}"
