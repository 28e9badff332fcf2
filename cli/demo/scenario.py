"""The demo: orders and what a correct pipeline makes of them; the pipeline killed and restarted, then the check.

Orders, and what is killed when, follow from a seed. Readers count all the while what is visible, and judge it at the
end. They share no code with the sinks: what they read is what any consumer with isolation level read_committed and any
SQL client would read.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import confluent_kafka
import msgspec
import psycopg
from psycopg import sql

from onceward.core.errors import ExternalError
from onceward.core.operations.comparison import Comparison, compare
from onceward.testing.pipeline.driver import DriverStart, DriverSupervisor
from onceward.testing.pipeline.endpoints import KAFKA, POSTGRES, Addresses, KafkaTopic, Table
from onceward.testing.pipeline.timed_faults import FAULTS, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from onceward.core.operations.comparison import Record
    from onceward.testing.services import DevServices

CENTS_PER_UNIT = {"EUR": 100, "USD": 91, "GBP": 117}
"""Euro cents for one unit of each currency: the enrichment."""
CANCELLED_SHARE = 0.05
_TICK_SECONDS: Final = 0.1
_SAMPLE_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 300.0


class Order(msgspec.Struct, frozen=True):
    """One order as it is in the topic `orders`."""

    order_id: str
    user: int
    amount: int
    currency: str
    status: str


class Total(msgspec.Struct, frozen=True):
    """The pipeline's result for an order: its value in euro cents, and its user's running total up to it."""

    order_id: str
    user: int
    cents: int
    total: int


def generate(seed: int, count: int, users: int) -> Iterator[Order]:
    """Yield `count` orders as they are produced: always the same for a seed; a user's are all in one partition."""
    rng = Random(seed)  # noqa: S311 - repeatable on purpose
    currencies = list(CENTS_PER_UNIT)
    for number in range(count):
        yield Order(
            order_id=f"o{number:08d}",
            user=rng.randrange(users),
            amount=rng.randrange(1, 500),
            currency=rng.choice(currencies),
            status="cancelled" if rng.random() < CANCELLED_SHARE else "placed",
        )


def expected(seed: int, count: int, users: int) -> dict[str, Total]:
    """Return the expected rows of each target at the end, by order id: cancelled orders are filtered out."""
    totals: dict[int, int] = {}
    result = {}
    for order in generate(seed, count, users):
        if order.status == "cancelled":
            continue
        cents = order.amount * CENTS_PER_UNIT[order.currency]
        totals[order.user] = totals.get(order.user, 0) + cents
        result[order.order_id] = Total(order.order_id, order.user, cents, totals[order.user])
    return result


SOURCE_TOPIC = "orders"
PARTITIONS = 4
EXACTLY_ONCE, AT_LEAST_ONCE = "order_totals", "order_totals_at_least_once"
_COLUMNS = 'order_id text, "user" int, cents bigint'
TARGETS: Mapping[tuple[str, str], KafkaTopic | Table] = {
    ("Kafka", "exactly once"): KafkaTopic(EXACTLY_ONCE, PARTITIONS),
    ("PostgreSQL", "exactly once"): Table(EXACTLY_ONCE, f"{_COLUMNS}, total bigint"),
    ("Kafka", "at least once"): KafkaTopic(AT_LEAST_ONCE, PARTITIONS),
    ("PostgreSQL", "at least once"): Table(AT_LEAST_ONCE, _COLUMNS),
}
"""Topics and tables that the pipeline writes, by system and guarantee."""
_TOPICS: Final = {endpoint.name: target for target, endpoint in TARGETS.items() if isinstance(endpoint, KafkaTopic)}
VICTIMS = {"kill-driver": "driver", "kill-kafka": "broker", "kill-postgres": "database"}
"""Processes that get SIGKILL, by the kit's fault."""
MADE: Final = ("services", "checkpoints", "driver.log")
"""Names of all that a demo makes in its folder, and that the next one deletes there."""
SAID = "demo: "
"""Prefix of the driver's messages in its log."""


def checkpoint(folder: Path, target: str) -> Path:
    """Checkpoint folder of the query that writes the targets of this name, below the demo's folder."""
    return folder / "checkpoints" / target


class Kill(NamedTuple):
    """A fault that strikes `delay` seconds after `share` of the exactly-once rows was seen."""

    fault: str
    share: float
    delay: float


def plan(seed: int, driver_kills: int) -> list[Kill]:
    """Return the kills of a run, in order: the driver `driver_kills` times, broker and database once each."""
    rng = Random(seed)  # noqa: S311 - repeatable on purpose
    faults = ["kill-driver"] * driver_kills + ["kill-kafka", "kill-postgres"]
    rng.shuffle(faults)
    width = 0.88 / len(faults)
    shares = [width * (number + rng.random() * 0.8) for number in range(len(faults))]
    return [Kill(fault, share, rng.uniform(0.0, 2.5)) for fault, share in zip(faults, shares, strict=True)]


class Sample(NamedTuple):
    """Rows visible in each target, `at` seconds after the beginning."""

    at: float
    rows: Mapping[tuple[str, str], int]


@dataclass
class Story:
    """The events of a run, for the display and for the picture."""

    addresses: Addresses
    orders: list[Order]
    totals: Mapping[str, Total]
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting"
    kills: list[tuple[float, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tell: Callable[[str], object] = lambda _: None
    samples: list[Sample] = field(default_factory=list)
    verdicts: list[Comparison] = field(default_factory=list)

    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self.began

    @property
    def batches(self) -> int:
        """Micro-batches that the exactly-once query has completed."""
        done = checkpoint(self.addresses.folder, EXACTLY_ONCE).glob("commits/[0-9]*")
        return max((int(path.name) + 1 for path in done), default=0)

    @property
    def rows(self) -> Mapping[tuple[str, str], int]:
        """Rows that are visible in each target."""
        return self.samples[-1].rows if self.samples else dict.fromkeys(TARGETS, 0)

    @property
    def done(self) -> int:
        """Rows that are visible in the exactly-once topic."""
        return self.rows["Kafka", "exactly once"]

    def note(self, text: str) -> None:
        """Keep a line for the reader."""
        self.notes.append(f"{self.elapsed():6.1f} s  {text}")
        self.tell(self.notes[-1])


def run_story(story: Story, services: DevServices, kills: list[Kill]) -> None:
    """Run the whole demo; the caller has started the services and stops them.

    Raises:
        ExternalError: The pipeline did not get through.
    """
    story.phase = f"producing {len(story.orders):,} orders"
    source = KafkaTopic(SOURCE_TOPIC, PARTITIONS, key="user")
    for endpoint in (source, *TARGETS.values()):
        endpoint.create(story.addresses)
    source.feed(story.addresses, [msgspec.structs.asdict(order) for order in story.orders])
    stopped = threading.Event()
    reading = threading.Thread(target=_sample, args=(story, stopped), daemon=True)
    reading.start()
    try:
        _run_pipeline(story, services, kills)
    finally:
        stopped.set()
        reading.join()
    story.phase = "checking"
    story.verdicts = check_targets(story.addresses, story.totals)
    story.phase = "done"


def _run_pipeline(story: Story, services: DevServices, kills: list[Kill]) -> None:
    log = story.addresses.folder / "driver.log"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **story.addresses.environment()}
    supervisor = DriverSupervisor(
        DriverStart([sys.executable, "-m", "onceward.cli.demo.demo_driver"], environment, Path.cwd(), log)
    )
    servers = dict(zip((KAFKA, POSTGRES), services.each, strict=True))
    dice = Random(len(kills))  # noqa: S311 - how long a server stays down
    scene = Scene(supervisor, servers, story.addresses, dice, math.inf, story.note)
    try:
        with log.open("rb") as written:
            _watch(story, scene, kills, written)
    finally:
        supervisor.stop(0)


def _watch(story: Story, scene: Scene, kills: list[Kill], log: BinaryIO) -> None:
    """Kill as planned, and note the events, until the driver ends well."""
    supervisor, heard, known = scene.supervisor, time.monotonic(), story.rows
    while True:
        codes = list(supervisor.exit_codes)
        for text in _said(log):
            story.note(text)
        if 0 in codes:
            return
        story.phase = f"running, start {len(codes) + 1} of the driver"
        if known != story.rows:
            heard, known = time.monotonic(), story.rows
        if time.monotonic() - heard > _QUIET_SECONDS:
            raise ExternalError(f"no row has become visible for {_QUIET_SECONDS:g} s; see {log.name}")
        if kills and story.done >= kills[0].share * len(story.totals) and supervisor.driver.exit_code is None:
            kill = kills.pop(0)
            time.sleep(kill.delay)
            story.kills.append((story.elapsed(), VICTIMS[kill.fault]))
            FAULTS[kill.fault](scene)
        time.sleep(_TICK_SECONDS)


def _said(log: BinaryIO) -> Iterator[str]:
    """Yield the driver's messages since the last call; a line that is not complete is left for the next one."""
    while (line := log.readline()).endswith(b"\n"):
        if line.startswith(SAID.encode()):
            yield line.decode(errors="replace").removeprefix(SAID).strip()
    log.seek(-len(line), os.SEEK_CUR)


def _sample(story: Story, stopped: threading.Event) -> None:
    """Count the visible rows until the end; a target that is down keeps its last count."""
    rows, addresses = dict.fromkeys(TARGETS, 0), story.addresses
    config = {"group.id": "onceward-demo-sampler", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": addresses.bootstrap_servers, "log_level": 0, **config})
    consumer.assign([confluent_kafka.TopicPartition(name, n, 0) for name in _TOPICS for n in range(PARTITIONS)])
    while not stopped.is_set():
        until = time.monotonic() + _SAMPLE_SECONDS
        while (left := until - time.monotonic()) > 0 and not stopped.is_set():
            for message in consumer.consume(2000, min(left, 0.5)):
                if message.error() is None:
                    rows[_TOPICS[message.topic() or ""]] += 1
        with suppress(psycopg.Error), psycopg.connect(addresses.dsn, connect_timeout=1) as connection:
            for target in TARGETS.keys() - _TOPICS.values():
                query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(TARGETS[target].name))
                [(rows[target],)] = connection.execute(query).fetchall()
        story.samples.append(Sample(story.elapsed(), dict(rows)))
    consumer.close()


def check_targets(addresses: Addresses, totals: Mapping[str, Total]) -> list[Comparison]:
    """Judge all four targets: the two exactly-once ones first."""
    return [judge_target(target, endpoint.read(addresses), totals) for target, endpoint in TARGETS.items()]


def judge_target(target: tuple[str, str], records: Iterable[Record], totals: Mapping[str, Total]) -> Comparison:
    """Compare the rows in a target with the expected ones; the contrast has no running totals."""
    must = [msgspec.structs.asdict(total) for total in totals.values()]
    if "exactly once" not in target:
        must = [{name: row[name] for name in row if name != "total"} for row in must]
    return compare(", ".join(target), must, records, "order_id")
