"""A source whose system does not answer is told: in the log, in notes, and in the pipeline's state."""

from __future__ import annotations

import itertools
import logging
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from onceward import FileSource, KafkaSource
from onceward.cli.advice import with_advice
from onceward.connectors.spark.read.kafka_offsets import watched_sources
from onceward.connectors.spark.session.query_plan import StreamingSource
from onceward.core.errors import SourceError
from onceward.core.log import DirectoryStore
from onceward.core.log.note_kinds import FailureNote, Note, SourceNote
from onceward.core.operations.status import PipelineState
from onceward.core.run import source_watch
from onceward.core.run.keeper import Keeper
from onceward.core.run.source_watch import (
    ASK_SECONDS,
    MOST_SECONDS,
    QUIET_SECONDS,
    SourceWatch,
    telling_of_wait,
    titles,
)
from onceward.sources import SequenceSource

from .spark_kit import Query, active
from .status_kit import at, judged, log, noted, written

if TYPE_CHECKING:
    from pathlib import Path


class World:
    """A source whose system answers or does not, a pipeline that completes epochs, and their clock."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.now, self.epochs, self.down = 0.0, 0, dict.fromkeys(names or ("orders",), False)
        self.asked, self.heard = 0, 0.0
        self.store = DirectoryStore(folder)
        sources: Any = {name: Answering(self, name) for name in self.down}
        self.watch = SourceWatch("paid", sources, lambda: self.epochs, lambda: self.store, lambda: self.now)

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 5.0
            self.watch.look()

    @property
    def told(self) -> list[tuple[str, float, bool]]:
        """Of each note: the source, the seconds, and whether it answers again."""
        return [(one.source, one.seconds or 0.0, not one.why) for one in noted(self.store.path, SourceNote)]


class Answering:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def unanswered(self, timeout: float) -> str:
        self.world.asked += 1
        if not self.world.down[self.name]:
            self.world.heard = self.world.now
            return ""
        self.world.now += timeout
        return "no broker answers at b:9092"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_source_that_hangs_for_seventy_seconds_is_told_with_its_broker(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.go(60)
    assert world.told == []
    world.down["orders"] = True
    world.go(70)
    world.down["orders"] = False
    world.go(10)
    assert [level for _, level, _ in caplog.record_tuples] == [logging.WARNING] * len(world.told)
    first, last = caplog.messages[0], caplog.messages[-1]
    assert first == "source orders of pipeline paid has not answered for 10 s: no broker answers at b:9092"
    assert last.startswith("source orders of pipeline paid answers again, after 1:1")
    assert [again for _, _, again in world.told] == [False, False, False, True]


def test_a_pipeline_that_completes_epochs_asks_nobody(world: World) -> None:
    for _ in range(20):
        world.epochs += 1
        world.go(5)
    assert world.asked == 0


def test_an_epoch_that_is_completed_ends_the_wait(world: World) -> None:
    world.down["orders"] = True
    world.go(40)
    world.epochs += 1
    world.go(5)
    assert world.told[-1][2]


def test_each_source_is_told_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, "orders", "payments")
    world.down["payments"] = True
    world.go(30)
    assert {source for source, _, _ in world.told} == {"payments"}


def test_a_source_that_cannot_say_is_left_alone(tmp_path: Path) -> None:
    def broken(_: float) -> str:
        raise ValueError("a mistake")

    world = World(tmp_path)
    world.watch._sources["orders"].unanswered = broken  # type: ignore[method-assign]
    world.go(100)
    assert world.told == []
    assert SequenceSource([{"n": 1}]).unanswered(1.0) == ""


def outages(told: list[tuple[str, float, bool]]) -> list[list[float]]:
    """The seconds that were told of each outage; the last one may not have ended."""
    found: list[list[float]] = [[]]
    for _, seconds, ended in told:
        if ended:
            found.append([])
        else:
            found[-1].append(seconds)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_is_true_whatever_happens(tmp_path: Path, seed: int) -> None:
    """An outage is told if it lasts, less and less often, never for longer than it is; only such a one has an end."""
    seeded, world = random.Random(seed), World(tmp_path)
    for _ in range(300):
        world.down["orders"] = seeded.random() < (0.97 if world.down["orders"] else 0.1)
        if not world.down["orders"] and seeded.random() < 0.3:
            world.epochs, world.heard = world.epochs + 1, world.now + 5
        before = len(world.told)
        world.go(5)
        fresh = [seconds for _, seconds, ended in world.told[before:] if not ended]
        waited = world.now - world.heard
        assert not fresh or (world.down["orders"] and QUIET_SECONDS <= fresh[0] <= waited + 0.1)
        if world.down["orders"] and waited > 2 * QUIET_SECONDS + ASK_SECONDS:
            assert outages(world.told)[-1]
    *ended, last = outages(world.told)
    assert ended
    assert all(ended)  # none has an end that was not told
    for each in (*ended, last):
        assert all(two >= one + min(one, MOST_SECONDS) - 0.1 for one, two in itertools.pairwise(each))


def test_where_nobody_watches_whoever_waits_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process of a Python data source knows no pipeline."""
    monkeypatch.setattr(source_watch, "QUIET_SECONDS", 0.05)
    orders = KafkaSource(bootstrap_servers="b:9092", topics=["orders"])
    with telling_of_wait("KafkaSource", orders):
        pass
    with telling_of_wait("KafkaSource", orders):
        while len(caplog.messages) < 2:
            time.sleep(0.01)
    told = "source KafkaSource (topic orders at b:9092) has not answered for"
    assert caplog.messages[:2] == [f"{told} 0.1 s", f"{told} 0.1 s"]


class TestState:
    def waits(self, ago: float, seconds: float, source: str = "KafkaSource (topic orders at b:9092)") -> list[Note]:
        return written(ago, what="source", source=source, seconds=seconds, why="no broker answers at b:9092")

    def test_a_source_that_hangs_makes_its_pipeline_silent_at_once(self) -> None:
        told = judged(log(900), [*written(90, 85, 80), *self.waits(10, 60.0)])
        assert (told.state, told.since) == (PipelineState.SILENT, at(70))
        assert told.what == "source KafkaSource (topic orders at b:9092) has not answered for 1:10 min"
        assert (told.source, told.error) == (
            "KafkaSource (topic orders at b:9092)",
            "no broker answers at b:9092",
        )
        assert with_advice(told, "/data/orders", []).command == "onceward doctor --store /data/orders"

    @pytest.mark.parametrize(
        "after",
        [
            written(5),  # an epoch
            written(5, what="start"),
            written(5, what="source", source="KafkaSource (topic orders at b:9092)", seconds=75.0, why=""),
        ],
    )
    def test_it_is_over_with_an_epoch_a_start_or_an_answer(self, after: list[Note]) -> None:
        told = judged(log(900), [*written(30, 25, 20), *self.waits(10, 60.0), *after])
        assert told.state is PipelineState.RUNNING

    def test_a_driver_that_died_meanwhile_is_not_said_to_wait_for_its_source(self) -> None:
        told = judged(log(9000), [*written(8000, 7990, 7980), *self.waits(7000, 40.0)])
        assert (told.state, told.source) == (PipelineState.SILENT, None)
        assert told.what.startswith("nothing was written")

    @pytest.mark.parametrize("seconds", [None, "x", -5.0, 1e300, float("inf"), []])
    def test_a_note_that_somebody_else_wrote_does_no_harm(self, seconds: Any) -> None:
        assert judged(log(900), [*written(9, 6, 3), *self.waits(1, seconds)]).state is PipelineState.RUNNING


class TestTitles:
    def test_two_sources_of_one_kind_are_told_apart(self, tmp_path: Path) -> None:
        def of(*topics: str) -> KafkaSource:
            return KafkaSource(bootstrap_servers="b:9092", topics=topics)

        sources: Any = {"KafkaSource#0": of("orders"), "KafkaSource#1": of("a", "b"), "KafkaSource#2": of("orders")}
        sources |= {
            "files": FileSource(tmp_path, schema=SequenceSource([{"n": 1}]).schema),
            "n": SequenceSource([{"n": 1}]),
        }
        assert list(titles(sources)) == [
            "KafkaSource (topic orders at b:9092)",
            "KafkaSource (topics a, b at b:9092)",
            "KafkaSource (topic orders at b:9092) #2",
            f"files (files in {tmp_path})",
            "n",
        ]

    def test_the_sources_of_a_spark_query_are_watched_sparks_own_one_too(self) -> None:
        kafka = {"kafka.bootstrap.servers": "b:9092", "startingoffsets": "earliest", "includeheaders": "true"}
        queried = [
            StreamingSource("kafka", {**kafka, "subscribe": "orders", "kafkaconsumer.polltimeoutms": "5"}),
            StreamingSource("onceward-kafka", {**kafka, "subscribepattern": "pay.*"}),
            StreamingSource("kafka", {**kafka, "assign": '{"x":[0]}'}),
            StreamingSource("kafka", {"kafka.sasl.jaas.config": "…", **kafka, "subscribe": "secret"}),
            StreamingSource("rate-micro-batch", {}),
        ]
        assert list(watched_sources(queried)) == [
            "kafka (topic orders at b:9092)",
            "KafkaSource (topics like pay.* at b:9092)",
            "kafka (topic x at b:9092)",
        ]


class TestKeeper:
    def test_a_query_that_fails_between_its_epochs_is_noted_once(self, tmp_path: Path) -> None:
        query = Query(tmp_path)
        query.spark.streams.active = [active(query)]
        store = DirectoryStore(tmp_path / "log")
        handler = query.driver(store=store)
        failure: list[BaseException | None] = [SourceError("nothing came from orders-0 at b:9092 for 120 s")]
        handler._session.failure = lambda _: failure[0]  # type: ignore[method-assign]
        query.run(0, handler=handler)
        query.spark.streams.active.clear()
        keeper = handler._this.keeper
        until = time.monotonic() + 10
        while keeper._thread is not None and time.monotonic() < until:
            time.sleep(0.01)
        for _ in range(2):
            keeper.look_once()
            keeper._ended()
        [left] = noted(store.path, FailureNote)
        assert (left.epoch, left.error) == (None, f"SourceError: {failure[0]}")

    def test_a_failure_of_an_epoch_is_not_noted_again(self, tmp_path: Path) -> None:
        query = Query(tmp_path)
        store = DirectoryStore(tmp_path / "log")
        handler = query.driver(store=store)
        query.run(0, handler=handler)
        with pytest.raises(OSError, match="lost"):
            query.run(1, handler=handler, fails=0)
        handler._session.failure = lambda _: OSError("the executor is lost")  # type: ignore[method-assign]
        handler._this.keeper._ended()
        assert len(noted(store.path, FailureNote)) == 1

    def test_the_end_of_a_query_is_reported_once(self) -> None:
        active, ended = [True], []
        watch = Keeper("p", is_active=lambda: active[0], look=lambda: None, ended=lambda: ended.append(1), every=0.05)
        assert not watch.look_once()  # not begun
        watch.start()
        assert watch.look_once()
        active[0] = False
        assert not watch.look_once()
        assert not watch.look_once()
        assert ended == [1]
