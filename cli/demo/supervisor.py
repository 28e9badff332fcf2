"""Run the demo: services up, orders in, the pipeline killed and restarted until it is through, then the check."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.core.errors import ExternalError

from .checker import Sample, Sampler, Verdict, check
from .scenario import Kill, Victim, expected, generate, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import DevServices

    from .scenario import DemoSettings

_LIVES = 40
_TICK_SECONDS = 0.1
_QUIET_SECONDS = 300.0


_LEFTOVER_SECONDS = 10.0


class Driver:
    """One life of the driver process, in a process group of its own."""

    def __init__(self, settings: DemoSettings, settings_file: Path, log: Path) -> None:
        self._events = settings.events
        self._read = settings.events.stat().st_size if settings.events.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "onceward.cli.demo.pipeline", str(settings_file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def events(self) -> list[dict[str, Any]]:
        """What the driver has reported since the last call; a line cut short by a kill is left out."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def kill(self) -> None:
        """SIGKILL the whole process group: driver, JVM and all; Spark's Python workers have groups of their own."""
        descendants = self._descendants()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # The workers end by themselves when the JVM is gone; whatever does not is a zombie writer for so long.
        _, alive = psutil.wait_procs(descendants, timeout=_LEFTOVER_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _descendants(self) -> list[psutil.Process]:
        try:
            found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return found


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
