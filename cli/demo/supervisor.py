"""Run the demo: services up, orders in, the pipeline killed and restarted until it is through, then the check."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.core.errors import ExternalError

from .chaos import Kill, Victim, plan
from .checker import Verdict, check
from .driver import Driver
from .orders import expected, generate
from .samples import Sample, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import DevServices

    from .settings import DemoSettings

_LIVES = 40
_TICK_SECONDS = 0.1
_QUIET_SECONDS = 300.0


@dataclass
class Story:
    """What happened, for the display and for the picture."""

    orders: int
    expected: int
    began: float
    phase: str = "starting"
    lives: int = 0
    batches: int = 0
    through: int = 0
    kills: list[tuple[float, Victim]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        """Keep a line for the reader."""
        self.notes.append(f"{self.elapsed():6.1f} s  {text}")


def run(settings: DemoSettings, services: DevServices, driver_kills: int, show: Callable[[Story], None]) -> Story:
    """Run the whole demo; the caller has started the services and stops them.

    Raises:
        ExternalError: The pipeline did not get through.
    """
    totals = expected(settings.seed, settings.orders, settings.users)
    story = Story(settings.orders, len(totals), time.monotonic())
    story.phase = f"producing {settings.orders:,} orders"
    show(story)
    _prepare(settings)
    with Sampler(settings, story.samples, story.began):
        _run_pipeline(settings, services, story, plan(settings.seed, driver_kills), show)
        story.phase = "checking"
        show(story)
        time.sleep(2 * _TICK_SECONDS)
    story.verdicts = check(settings, totals)
    story.phase = "done"
    show(story)
    return story


def _prepare(settings: DemoSettings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    topics = [settings.source_topic, settings.sink_topic, settings.contrast_topic]
    for future in admin.create_topics([NewTopic(topic, settings.partitions, 1) for topic in topics]).values():
        future.result(30)
    with psycopg.connect(settings.dsn) as connection:
        connection.execute(
            psycopg.sql.SQL('CREATE TABLE {} (order_id text, "user" int, cents bigint, total bigint)').format(
                psycopg.sql.Identifier(settings.sink_table)
            )
        )
        connection.execute(
            psycopg.sql.SQL('CREATE TABLE {} (order_id text, "user" int, cents bigint)').format(
                psycopg.sql.Identifier(settings.contrast_table)
            )
        )
    _produce(settings)


def _produce(settings: DemoSettings) -> None:
    failures: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
    )
    for order in generate(settings.seed, settings.orders, settings.users):
        partition = order.user % settings.partitions
        while True:
            try:
                producer.produce(
                    settings.source_topic, order.value(), str(order.user), partition, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    if failures:
        raise ExternalError(f"{len(failures)} orders could not be produced: {failures[0]}")


def _run_pipeline(
    settings: DemoSettings, services: DevServices, story: Story, kills: list[Kill], show: Callable[[Story], None]
) -> None:
    home = Path(settings.home)
    settings_file = home / "settings.json"
    settings.save(settings_file)
    for life in range(1, _LIVES + 1):
        story.lives = life
        story.phase = f"running, life {life} of the driver"
        driver = Driver(settings, settings_file, home / "driver.log")
        try:
            _live(driver, services, story, kills, show)
        finally:
            driver.kill()
        if driver.exit_code == 0:
            return
    raise ExternalError(f"the pipeline did not get through in {_LIVES} lives; see {home / 'driver.log'}")


def _live(
    driver: Driver, services: DevServices, story: Story, kills: list[Kill], show: Callable[[Story], None]
) -> None:
    """Watch one life of the driver until it ends or is killed."""
    due: float | None = None
    heard = time.monotonic()
    while driver.exit_code is None:
        if _listen(driver, story):
            heard = time.monotonic()
        if time.monotonic() - heard > _QUIET_SECONDS:
            story.note(f"the driver said nothing for {_QUIET_SECONDS:.0f} s: killing it")
            return
        if kills and due is None and story.through >= kills[0].share * story.orders:
            due = time.monotonic() + kills[0].delay
        if due is not None and time.monotonic() >= due:
            due, kill = None, kills.pop(0)
            story.kills.append((story.elapsed(), kill.victim))
            story.note(f"SIGKILL to the {kill.victim}")
            show(story)
            if kill.victim is Victim.DRIVER:
                return
            _crash(services, kill.victim)
        show(story)
        time.sleep(_TICK_SECONDS)
    _listen(driver, story)


def _crash(services: DevServices, victim: Victim) -> None:
    service = services.kafka if victim is Victim.BROKER else services.postgres
    assert service is not None  # noqa: S101 - the demo runs both
    service.kill()
    time.sleep(1.0)
    service.start()
    service.wait_ready()


def _listen(driver: Driver, story: Story) -> bool:
    events = driver.events()
    for event in events:
        match event["event"]:
            case "batch" if event["query"] == "exactly-once":
                story.batches += 1
                story.through += event["rows"]
            case "failed":
                story.note(f"{event['query']} failed: {event['error'].splitlines()[0][:150]}")
            case "started" | "ended" as what:
                story.note(f"the driver {what}")
            case _:
                pass
    return bool(events)
