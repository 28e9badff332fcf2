"""Run the demo: orders in, the pipeline killed and restarted until it is through, then the check."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.errors import ExternalError
from onceward.testing.pipeline.driver import DriverProcess, Start
from onceward.testing.pipeline.endpoints import KafkaTopic, Table

from .checker import Sample, check, sampling
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

    from onceward.testing.pipeline.judge import Comparison
    from onceward.testing.services import DevServices

_LIVES: Final = 40
_TICK_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 300.0


class Driver(DriverProcess):
    """One life of the driver process, which reports what it does."""

    def __init__(self, settings: DemoSettings, log: Path) -> None:
        settings.events.touch()
        self._events = settings.events.open("rb")
        self._events.seek(0, os.SEEK_END)
        arguments = [sys.executable, "-m", "onceward.cli.demo.pipeline", str(settings.file)]
        super().__init__(Start(arguments, {**os.environ, "PYTHONUNBUFFERED": "1"}, Path.cwd(), log))

    def events(self) -> list[dict[str, Any]]:
        """What the driver has reported since the last call; a line cut short by a kill is left out."""
        found: list[dict[str, Any]] = []
        while (line := self._events.readline()).endswith(b"\n"):
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        self._events.seek(-len(line), os.SEEK_CUR)
        return found

    def kill(self, grace: float = 0.0) -> None:
        super().kill(grace)
        self._events.close()


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
    verdicts: list[Comparison] = field(default_factory=list)

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
    orders = KafkaTopic(SOURCE_TOPIC, PARTITIONS, key="user")
    total = 'order_id text, "user" int, cents bigint'
    for endpoint in (
        orders,
        *(KafkaTopic(name, PARTITIONS) for name in (EXACTLY_ONCE, AT_LEAST_ONCE)),
        Table(EXACTLY_ONCE, f"{total}, total bigint"),
        Table(AT_LEAST_ONCE, total),
    ):
        endpoint.create(settings.addresses)
    generated = generate(settings.seed, settings.orders, settings.users)
    orders.feed(settings.addresses, [msgspec.structs.asdict(order) for order in generated])


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
    service.start_again()


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
