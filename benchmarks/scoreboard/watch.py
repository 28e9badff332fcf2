"""What readers see while a case runs: when an output grows, how long they are held up, which values go back.

One thread for each output, with a connection of its own that shares no code with any sink.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.testing.pipeline import Addresses

EVERY_SECONDS = 0.015


class Watch:
    """One output as its readers see it.

    Attributes:
        size: What is visible: a number that changes with every change.
        blocked: Longest time in seconds for which a reader waited for something that was written already; None where
            that cannot happen.
        went_back: How often a value was replaced by an older one; None where no values are replaced.
    """

    size: float = 0
    blocked: float | None = None
    went_back: int | None = None
    first: float | None = None
    """When readers saw something for the first time, in seconds of time.monotonic()."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(psycopg.Error, confluent_kafka.KafkaException, OSError):  # the server is down
                for _ in self.looks():
                    if self.size and self.first is None:
                        self.first = time.monotonic()
                    if self._stopped.wait(EVERY_SECONDS):
                        return
            self._stopped.wait(0.1)

    def looks(self) -> Iterator[None]:
        """Connect, and look again and again."""
        raise NotImplementedError

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)


class TopicWatch(Watch):
    """Counts the messages that a read_committed consumer gets; `blocked` is HeldUp's."""

    def __init__(self, addresses: Addresses, topic: str, partitions: int) -> None:
        self._servers, self._topic, self._partitions = addresses.bootstrap_servers, topic, partitions
        self._held_up = HeldUp(addresses, topic, partitions)
        super().__init__()

    @property
    def blocked(self) -> float | None:  # type: ignore[override]
        return self._held_up.longest

    def looks(self) -> Iterator[None]:
        consumer = _consumer(self._servers, "read_committed")
        consumer.assign([confluent_kafka.TopicPartition(self._topic, n, 0) for n in range(self._partitions)])
        while True:  # it reconnects by itself
            self.size += sum(not message.error() for message in consumer.consume(500, 0.005))
            yield

    def stop(self) -> None:
        super().stop()
        self._held_up.stop()


class HeldUp(Watch):
    """For how long a partition's last stable offset stays where it is while messages wait behind it."""

    def __init__(self, addresses: Addresses, topic: str, partitions: int) -> None:
        self.longest = 0.0
        self._servers = addresses.bootstrap_servers
        self._of = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        super().__init__()

    def looks(self) -> Iterator[None]:
        committed, all_of_it = (_consumer(self._servers, level) for level in ("read_committed", "read_uncommitted"))
        since: dict[int, tuple[int, float]] = {}
        while True:
            for partition in self._of:
                end = all_of_it.get_watermark_offsets(partition, timeout=1)[1]
                stable = committed.get_watermark_offsets(partition, timeout=1)[1]
                now = time.monotonic()
                if stable >= end:
                    since.pop(partition.partition, None)
                    continue
                at, began = since.get(partition.partition, (-1, now))
                since[partition.partition] = (stable, began if at == stable else now)
                self.longest = max(self.longest, now - since[partition.partition][1])
            yield
            self._stopped.wait(0.1)


def _consumer(servers: str, isolation: str) -> confluent_kafka.Consumer:
    settings: dict[str, Any] = {"enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 10}
    settings |= {"isolation.level": isolation, "group.id": uuid.uuid4().hex, "reconnect.backoff.max.ms": 500}
    return confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})


class TableWatch(Watch):
    """Counts the rows of a table; `blocked` is the longest time that the query took.

    Args:
        addresses: Of the case.
        table: Its name.
        version: Column that only grows for each `id`; default: rows are only added.
    """

    def __init__(self, addresses: Addresses, table: str, version: str = "") -> None:
        self._dsn, self._version = addresses.dsn, version
        self._query = f"SELECT id, {version} FROM {table}" if version else f"SELECT 0, count(*) FROM {table}"
        self.blocked, self.went_back = 0.0, 0 if version else None
        super().__init__()

    def looks(self) -> Iterator[None]:
        newest: dict[int, int] = {}
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as connection:
            while True:
                began = time.monotonic()
                counts = dict(connection.execute(self._query).fetchall())
                self.blocked = max(self.blocked or 0.0, time.monotonic() - began)
                if self.went_back is not None:
                    self.went_back += sum(value < newest.get(key, value) for key, value in counts.items())
                newest |= counts
                self.size = sum(counts.values())
                yield


class FolderWatch(Watch):
    """Counts files that readers see and that are not empty.

    Args:
        folder: Where they are.
        pattern: Of their names, for Path.rglob.
    """

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        super().__init__()

    def looks(self) -> Iterator[None]:
        while True:
            visible = (path for path in self._folder.rglob(self._pattern) if not path.name.startswith((".", "_")))
            self.size = sum(path.stat().st_size > 0 for path in visible)
            yield


def wait_for_growth(watches: list[Watch], until: float) -> bool:
    """Wait until readers see a change; False if there was none until then (time.monotonic())."""
    before = [watch.size for watch in watches]
    while time.monotonic() < until:
        if [watch.size for watch in watches] != before:
            return True
        time.sleep(0.003)
    return False
