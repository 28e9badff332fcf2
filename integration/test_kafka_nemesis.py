"""A Spark job on three brokers with Kafka's own times, while they are killed, frozen and cut off, in turns.

The night's run takes ONCEWARD_NEMESIS_SECONDS (default: an hour).
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer

from onceward.testing.machine import end_of
from onceward.testing.services import KAFKAS_TIMES, KafkaCluster

from .kafka_kit import eventually, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS, KEYS = 3, 7
NIGHT = float(os.environ.get("ONCEWARD_NEMESIS_SECONDS", "3600"))
pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2 * NIGHT + 1800)]
REST, LAST = 5.0, 240.0
"""Seconds between two faults, and for the last rows to come."""
DRIVER = Path(__file__).with_name("nemesis_driver.py")


class Feed:
    """Numbers, 40 a second, from a producer that keeps trying."""

    def __init__(self, servers: str, topic: str) -> None:
        self.count, self.failed = 0, list[str]()
        self._over, self._topic = threading.Event(), topic
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "delivery.timeout.ms": 600_000, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.025):
            key, value = str(self.count % KEYS), str(self.count)
            self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            self._producer.poll(0)
            self.count += 1

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0
        assert self.failed == []


class Supervised:
    """The driver, which is started again whenever it ends."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log, self.starts, self._over = folder / "driver.log", 0, False
        self._command = [sys.executable, str(DRIVER), *arguments, str(folder)]
        self._environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self.starts += 1
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
            self._process.wait()

    def end(self) -> None:
        self._over = True
        if self._process is not None:
            self._process.terminate()
        self._thread.join()


@contextmanager
def running(cluster: KafkaCluster, folder: Path, topics: tuple[str, str]) -> Iterator[tuple[Feed, Supervised]]:
    feed, driver = Feed(cluster.direct, topics[0]), Supervised(folder, cluster.bootstrap_servers, *topics)
    try:
        yield feed, driver
    finally:
        driver.end()
        with suppress(AssertionError):
            feed.end()


def kill(cluster: KafkaCluster, number: int) -> None:
    cluster.brokers[number].kill()


def freeze(cluster: KafkaCluster, number: int) -> None:
    cluster.brokers[number].pause()


def cut(cluster: KafkaCluster, number: int) -> None:
    cluster.proxies[number].cut()


def refuse(cluster: KafkaCluster, number: int) -> None:
    cluster.proxies[number].refuse()


def forget(cluster: KafkaCluster, number: int) -> None:
    cluster.proxies[number].forget()


def cut_all(cluster: KafkaCluster, _: int) -> None:
    cluster.cut()


def restart(cluster: KafkaCluster, number: int) -> None:
    cluster.brokers[number].restart()


FAULTS: list[Callable[[KafkaCluster, int], None]] = [kill, freeze, cut, refuse, forget, cut_all, restart]


def values(cluster: KafkaCluster, topic: str) -> list[tuple[bytes, int]]:
    with suppress(KafkaException):
        return [(message.key(), int(message.value())) for message in read_all(cluster.direct, topic)]
    return []


@pytest.mark.parametrize("seconds", [50.0, pytest.param(NIGHT, marks=pytest.mark.nightly)])
def test_a_spark_job_is_exact_whatever_becomes_of_any_one_broker(tmp_path: Path, seconds: float) -> None:
    draw, done = Random(56), dict.fromkeys((fault.__name__ for fault in FAULTS), 0)
    with KafkaCluster(tmp_path / "cluster", times=KAFKAS_TIMES) as cluster:
        topics = cluster.create("numbers", PARTITIONS), cluster.create("copy", PARTITIONS)
        with running(cluster, tmp_path, topics) as (feed, driver):
            eventually(lambda: bool(values(cluster, "copy")), f"first rows: {driver.log}", seconds=120)
            began = time.monotonic()
            for fault in itertools.chain([kill, freeze, cut], iter(lambda: draw.choice(FAULTS), None)):
                if time.monotonic() - began > seconds:
                    break
                fault(cluster, draw.randrange(1, 4))
                done[fault.__name__] += 1
                time.sleep(draw.choice([2.0, 8.0, 14.0, 25.0]))
                cluster.up_again()
                time.sleep(REST)
            feed.end()
            eventually(lambda: len(values(cluster, "copy")) >= feed.count, end_of(driver.log, 60), seconds=LAST)
            time.sleep(2)  # nothing more comes
            copied = values(cluster, "copy")
    print(f"{feed.count} rows, faults {done} in {time.monotonic() - began:.0f} s, {driver.starts} starts of the driver")
    assert sorted(number for _, number in copied) == list(range(feed.count))
    for key in {key for key, _ in copied}:
        numbers = [number for one, number in copied if one == key]
        assert numbers == sorted(numbers), f"key {key!r} is out of order"
