"""Run the demo: orders in, the pipeline killed and restarted until it is through, then the check."""

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
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import msgspec
import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.core.errors import ExternalError

from .checker import Sample, Verdict, check, sampling
from .scenario import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    PARTITIONS,
    SOURCE_TOPIC,
    DemoSettings,
    Kill,
    Victim,
    expected,
    generate,
    plan,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import DevServices

_LIVES: Final = 40
_TICK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 300.0
_LEFTOVER_SECONDS: Final = 10.0


class Driver:
    """One life of the driver process, in a process group of its own."""

    def __init__(self, settings: DemoSettings, log: Path) -> None:
        settings.events.touch()
        self._events = settings.events.open("rb")
        self._events.seek(0, os.SEEK_END)
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "onceward.cli.demo.pipeline", str(settings.file)],
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
        found: list[dict[str, Any]] = []
        while (line := self._events.readline()).endswith(b"\n"):
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        self._events.seek(-len(line), os.SEEK_CUR)
        return found

    def kill(self) -> None:
        """SIGKILL the whole process group: driver, JVM and all; Spark's Python workers have groups of their own."""
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._events.close()
        # The workers end by themselves when the JVM is gone; whatever does not is a zombie writer for so long.
        _, alive = psutil.wait_procs(descendants, timeout=_LEFTOVER_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@dataclass
class Story:
    """What happened, for the display and for the picture."""

    orders: int
    expected: int
    show: Callable[[Story], None]
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting"
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

    def enter(self, phase: str) -> None:
        """Begin the next phase, and show it."""
        self.phase = phase
        self.show(self)


def run(settings: DemoSettings, services: DevServices, driver_kills: int, show: Callable[[Story], None]) -> Story:
    """Run the whole demo; the caller has started the services and stops them.

    Raises:
        ExternalError: The pipeline did not get through.
    """
    totals = expected(settings.seed, settings.orders, settings.users)
    story = Story(settings.orders, len(totals), show)
    story.enter(f"producing {settings.orders:,} orders")
    _prepare(settings)
    with sampling(settings, story.samples, story.began):
        _run_pipeline(settings, services, story, plan(settings.seed, driver_kills))
        story.enter("checking")
        time.sleep(2 * _TICK_SECONDS)
    story.verdicts = check(settings, totals)
    story.enter("done")
    return story


def _prepare(settings: DemoSettings) -> None:
    settings.file.touch(mode=0o600)
    settings.file.write_bytes(msgspec.json.encode(settings))
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    topics = [NewTopic(topic, PARTITIONS, 1) for topic in (SOURCE_TOPIC, EXACTLY_ONCE, AT_LEAST_ONCE)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    with psycopg.connect(settings.dsn) as connection:
        connection.execute(f'CREATE TABLE {EXACTLY_ONCE} (order_id text, "user" int, cents bigint, total bigint)')
        connection.execute(f'CREATE TABLE {AT_LEAST_ONCE} (order_id text, "user" int, cents bigint)')
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
        value, key, partition = msgspec.json.encode(order), str(order.user), order.user % PARTITIONS
        while True:
            try:
                producer.produce(SOURCE_TOPIC, value, key, partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    if failures:
        raise ExternalError(f"{len(failures)} orders could not be produced: {failures[0]}")


def _run_pipeline(settings: DemoSettings, services: DevServices, story: Story, kills: list[Kill]) -> None:
    log = Path(settings.home) / "driver.log"
    for life in range(1, _LIVES + 1):
        story.enter(f"running, start {life} of the driver")
        driver = Driver(settings, log)
        try:
            _live(driver, services, story, kills)
        finally:
            driver.kill()
        if driver.exit_code == 0:
            return
    raise ExternalError(f"the pipeline did not finish in {_LIVES} starts of its driver; see {log}")


def _live(driver: Driver, services: DevServices, story: Story, kills: list[Kill]) -> None:
    """Watch one life of the driver until it ends or is killed."""
    due: float | None = None
    heard = time.monotonic()
    while driver.exit_code is None:
        if _listen(driver, story):
            heard = time.monotonic()
        if time.monotonic() - heard > _QUIET_SECONDS:
            story.note(f"the driver made no progress for {_QUIET_SECONDS:.0f} s: killing it")
            return
        if kills and due is None and story.through >= kills[0].share * story.orders:
            due = time.monotonic() + kills[0].delay
        if due is not None and time.monotonic() >= due:
            due, victim = None, kills.pop(0).victim
            story.kills.append((story.elapsed(), victim))
            story.note(f"SIGKILL to the {victim}")
            story.show(story)
            if victim is Victim.DRIVER:
                return
            _crash(services, victim)
        story.show(story)
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
