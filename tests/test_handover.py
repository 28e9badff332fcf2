"""A pipeline is passed on between two epochs, whoever dies, sleeps or gets no answer from the store, and whenever.

`World` runs drivers in every order: at each call of the store, another one may run on; each may die or sleep for long;
calls of the store may fail before or after their effect.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from onceward.core import CheckpointConfig, FileBackend, JobState, RestartStrategy
from onceward.core.errors import ConfigurationError, FencedError, OncewardError, StoreError
from onceward.core.log import DirectoryStore, EpochInput, LogWriter, MemoryStore, read
from onceward.core.log.entries import key_of
from onceward.core.run.handover import (
    LOOK_SECONDS,
    SILENT_SECONDS,
    STEP_SECONDS,
    Predecessor,
    Successor,
    check_take_over,
    run_steps,
)

from .core_fakes import policy
from .engine_kit import Slowly, numbers, pipeline, reach
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

PATIENCE = 20.0


class DiedError(BaseException):
    """This driver's process ends here."""


class Store(MemoryStore):
    """Lets others run at each call, and may fail."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._lost = ""
        self._late: tuple[str, bytes] | None = None

    def lose(self, call: str) -> None:
        """Lose the next put of an answer; a late one takes effect after the one that follows it has begun."""
        self._lost = call

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._world.pass_call()
        if self._lost and key.startswith("I"):
            lost, self._lost = self._lost, ""
            self._late = (key, b"late") if lost == "late put" else None
            raise StoreError("no answer")
        if self._late is not None and key == self._late[0]:
            super().put_if_absent(*self._late)
            self._late = None
        done = super().put_if_absent(key, data)
        self._world.pass_call()
        return done

    def get(self, key: str) -> bytes | None:
        self._world.pass_call()
        return super().get(key)

    def list_keys(self) -> list[str]:
        self._world.pass_call()
        return super().list_keys()

    def delete(self, key: str) -> None:
        self._world.pass_call()
        super().delete(key)
        self._world.pass_call()


class Driver:
    """One process: it may first ask for the pipeline, and then runs epochs until it is fenced, or hands over.

    One that does not ask puts its START with its first epoch, which it begins when rows are there: `rows`.
    """

    def __init__(self, world: World, name: str, *, asks: bool, at: float, rows: float = 0) -> None:
        self.world, self.name, self.asks, self.due, self.rows = world, name, asks, at, rows
        self.state = "preparing"
        self.writer = LogWriter(world.store, "p", policy(monotonic=lambda: world.now))
        self.epochs: list[float] = []
        self.writing = False
        self.made_room: bool | None = None
        self.started_at: float | None = None
        self.steps = self._live()
        self.running = self.slept = False

    def _live(self) -> Generator[float, None, None]:
        if self.asks:
            successor = Successor(self.world.store, PATIENCE, lambda: self.world.now)
            self.made_room = yield from successor.take(self._put_start)
            self.state = "idle"
        predecessor = Predecessor(self.world.store, None, lambda: self.world.now)
        looked = self.world.now
        if (yield from self._idle(predecessor)):
            return
        if not self.asks:
            self._put_start()
        while True:
            self.state, self.writing, asked = "working", True, False
            ends = self.world.now + self.world.random.uniform(self.world.shortest, self.world.longest)
            while self.world.now < ends:
                yield min(ends - self.world.now, LOOK_SECONDS)
                if self.world.now - looked >= LOOK_SECONDS:
                    looked = self.world.now
                    with suppress(StoreError):
                        predecessor.answer_for(self.writer.token.start)
                        asked = predecessor.is_asked()
            self._decide()
            self.writing = False
            if asked:
                self.state = "paused"
                self.world.when_paused()
                if (yield from predecessor.hand_over()):
                    predecessor.say_ended()
                    return

    def _idle(self, predecessor: Predecessor) -> Generator[float, None, bool]:
        """Wait for rows; return whether it has handed over meanwhile."""
        while self.world.now < self.rows:
            self.state = "idle"
            yield min(self.rows - self.world.now, LOOK_SECONDS)
            with suppress(StoreError):
                if predecessor.is_asked():
                    self.state = "paused"
                    if (yield from predecessor.hand_over()):
                        predecessor.say_ended()
                        return True
        return False

    def die(self) -> None:
        self.state, self.writing = "dead", False

    def _put_start(self) -> None:
        self.writer.start()
        self.started_at = self.world.now
        self.world.starts.append((self, {each for each in self.world.drivers if each.writing and each is not self}))

    def _decide(self) -> None:
        epoch = self.writer.view.decided + 1
        said = EpochInput(query="q", digest=str(epoch), start=None, end=[])
        self.writer.decide(epoch, [], sinks=["s"], epoch_input=said)
        self.writer.complete(epoch)
        self.epochs.append(self.world.now)


class World:
    """Drivers, a store, and a clock."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.random, self.faults, self.now = random.Random(seed), faults, 0.0
        self.shortest, self.longest = 0.1, 3.0
        """Seconds that an epoch takes."""
        self.store = Store(self)
        self.drivers: list[Driver] = []
        self.starts: list[tuple[Driver, set[Driver]]] = []
        self.when_paused: Callable[[], object] = lambda: None
        """Called when a predecessor is about to say that it has paused."""
        self._depth = 0
        self._running: list[Driver] = []

    def add(self, name: str, *, asks: bool, at: float, rows: float = 0) -> Driver:
        self.drivers.append(Driver(self, name, asks=asks, at=at, rows=rows))
        return self.drivers[-1]

    def pass_call(self) -> None:
        """Run others on, and fail now and then."""
        if not self._running:
            return
        driver = self._running[-1]
        if driver.state == "dead":
            raise DiedError
        if self._depth < 3 and self.random.random() < 0.2:
            others = [one for one in self.drivers if not one.running and one.state not in {"ended", "dead"}]
            due = [one for one in others if one.due <= self.now]
            if due:
                self._step(self.random.choice(due))
        if self.faults and self.random.random() < 0.01:
            if self.random.random() < 0.1:
                driver.state = "dead"
                raise DiedError
            raise StoreError("no answer")

    def run(self, until: float) -> None:
        while living := [one for one in self.drivers if one.state not in {"ended", "dead"}]:
            first = min(living, key=lambda one: (one.due, self.random.random()))
            if first.due > until:
                return
            self.now = max(self.now, first.due)
            if self.faults and self.random.random() < 0.005:
                first.slept, first.due = True, self.now + self.random.uniform(0, 3 * SILENT_SECONDS)
                continue
            self._step(first)

    def _step(self, driver: Driver) -> None:
        driver.running = True
        self._depth += 1
        self._running.append(driver)
        try:
            driver.due = self.now + next(driver.steps)
        except StopIteration:
            driver.state = "ended"
        except DiedError:
            pass
        except FencedError:
            driver.state = "ended"
        except OncewardError:
            driver.state = "dead"  # and would be started again
        finally:
            self._running.pop()
            self._depth -= 1
            driver.running = False
            driver.writing &= driver.state == "working"


@pytest.mark.parametrize("seed", range(10))
def test_a_pipeline_is_passed_on_between_two_epochs_and_without_a_gap(seed: int) -> None:
    world = World(seed, faults=False)
    old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=7.3)
    world.run(60)
    assert (old.state, new.state) == ("ended", "working")
    assert new.made_room
    assert new.started_at is not None
    assert new.started_at - 7.3 < 2 * LOOK_SECONDS + 3, "two looks and the longest epoch"
    assert new.started_at - old.epochs[-1] < 3 * STEP_SECONDS
    assert dict(world.starts)[new] == set(), "no epoch was under way"


@pytest.mark.parametrize("seed", range(5))
def test_each_of_many_deployments_takes_over_from_the_one_before(seed: int) -> None:
    world = World(seed, faults=False)
    drivers = [world.add("first", asks=False, at=0)]
    drivers += [world.add(f"number {n}", asks=True, at=20.0 * n) for n in range(1, 5)]
    world.run(120)
    assert [one.state for one in drivers] == ["ended"] * 4 + ["working"]
    assert all(one.made_room for one in drivers[1:])
    assert not any(writing for _, writing in world.starts)


@pytest.mark.parametrize("log", ["of a driver that has died", "that is empty"])
@pytest.mark.parametrize("rows", ["come", "do not come"])
@pytest.mark.parametrize("seed", range(10))
def test_a_driver_hands_over_from_its_own_start_on(seed: int, log: str, rows: str) -> None:
    """Nothing is there yet that shows it: it has run no epoch, and put no START, until rows come for it."""
    world = World(seed, faults=False)
    if log != "that is empty":
        world.add("before", asks=False, at=0)
        world.run(9)
        world.drivers[0].die()
    old = world.add("old", asks=False, at=10, rows=28 + seed / 5 if rows == "come" else 1000)
    new = world.add("new", asks=True, at=28)
    world.run(60)
    assert (old.state, new.state, new.made_room) == ("ended", "working", True)
    assert dict(world.starts)[new] == set(), "no epoch was under way"
    assert new.started_at is not None
    assert new.started_at - 28 < 2 * (2 * LOOK_SECONDS + 3), "two looks and the longest epoch, at either START"
    world.run(1100)
    assert new.state == "working"


def test_a_driver_is_asked_in_its_first_epoch_as_in_any_other() -> None:
    world = World(0, faults=False)
    world.shortest = world.longest = PATIENCE - 4
    old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=1)
    world.run(60)
    assert (old.state, new.state, new.made_room) == ("ended", "working", True)
    assert len(old.epochs) == 1
    assert dict(world.starts)[new] == set()


def test_without_a_predecessor_a_driver_waits_for_no_longer_than_a_sign() -> None:
    world = World(0, faults=False)
    first = world.add("first", asks=True, at=0)
    world.run(10)
    assert (first.made_room, first.state) == (False, "working")
    assert first.started_at is not None
    assert first.started_at < SILENT_SECONDS + 1, "a driver that has put no START yet may be there"
    first.state = "dead"
    second = world.add("second", asks=True, at=20)
    world.run(40)
    assert second.started_at is not None
    assert second.started_at - 20 < SILENT_SECONDS + 1
    assert (second.made_room, second.state) == (False, "working")


def test_a_successor_that_dies_before_its_start_leaves_the_pipeline_to_its_predecessor() -> None:
    for seed in range(5):
        world = World(seed, faults=False)
        old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=7)
        world.when_paused = new.die
        world.run(30)
        assert (old.state, new.started_at) == ("working", None)
        assert old.epochs[-1] > 25


@pytest.mark.parametrize("call", ["put", "late put"])
def test_a_predecessor_whose_answer_is_lost_gives_it_again_and_nobody_waits_for_the_successor_s_patience(
    call: str,
) -> None:
    world = World(0, faults=False)
    old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=7)
    world.when_paused = lambda: world.store.lose(call)
    world.run(60)
    assert (old.state, new.state, new.made_room) == ("ended", "working", True)
    assert new.started_at is not None
    assert new.started_at - old.epochs[-1] < 1


@pytest.mark.parametrize("bytes_there", [b"", b"no JSON", b'{"id": 7}', b"\xff"])
def test_a_request_that_cannot_be_read_counts_as_one_of_a_successor_that_has_died(bytes_there: bytes) -> None:
    world = World(0, faults=False)
    old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=7)
    world.run(6)
    world.store.put_if_absent("H" + key_of(old.writer.token.start)[1:], bytes_there)
    world.run(60)
    assert (old.state, new.state, new.made_room) == ("ended", "working", True)
    assert new.started_at is not None
    assert new.started_at - 7 < SILENT_SECONDS + 2 * LOOK_SECONDS + 3 + 1


def test_a_successor_that_is_stopped_while_it_waits_takes_its_request_back() -> None:
    store = MemoryStore()
    LogWriter(store, "p", policy()).start()
    keys = store.list_keys()

    def pause(_: float) -> None:
        assert len(store.list_keys()) == len(keys) + 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        run_steps(Successor(store, PATIENCE).take(lambda: pytest.fail("it was stopped")), pause)
    assert store.list_keys() == keys
    assert stopped.value.__traceback__ is not None, "which would have kept the generator"


def test_an_epoch_that_takes_longer_than_the_successor_waits_is_fenced() -> None:
    world = World(0, faults=False)
    old, new = world.add("old", asks=False, at=0), world.add("new", asks=True, at=5)
    world.run(2)
    world.shortest = world.longest = 1000.0
    world.run(100)
    assert new.started_at == pytest.approx(5 + PATIENCE, abs=3)
    assert not new.made_room
    world.run(2000)
    assert old.state == "ended"
    assert new.state == "working"


def test_of_two_successors_one_gets_the_pipeline_and_the_other_an_error() -> None:
    for seed in range(10):
        world = World(seed, faults=False)
        old = world.add("old", asks=False, at=0)
        both = [world.add("one", asks=True, at=10), world.add("another", asks=True, at=10)]
        world.run(60)
        assert old.state == "ended"
        assert Counter(one.state for one in both) == {"working": 1, "ended": 1}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(100, 3000, 100))])
def test_whoever_dies_or_sleeps_the_pipeline_runs_on(seed: int) -> None:
    outcomes = Counter[str]()
    for number in range(seed, seed + 100):
        world = World(number, faults=True)
        rows = world.random.choice([0, world.random.uniform(0, 30)])
        old = world.add("old", asks=False, at=0, rows=rows)
        new = world.add("new", asks=True, at=world.random.uniform(0, 10))
        world.run(100)
        outcomes[f"{old.state} {new.state}"] += 1
        has_started = read(world.store).writer_id == new.writer.token.writer_id
        if has_started and new.state != "dead":
            assert new.state == "working", number
            assert old.state in {"ended", "dead"}, number
        elif not has_started and old.state != "dead":
            assert old.state == "working", number
            assert old.epochs[-1] > 100 - 4 * SILENT_SECONDS, number
        if new.made_room and not (old.slept or new.slept):
            assert dict(world.starts)[new] == set(), number
    assert len(outcomes) > 3, outcomes


@pytest.mark.parametrize(("patience", "known"), [(-1.0, True), (float("inf"), True), ("10", True), (10.0, False)])
def test_a_time_that_is_none_and_a_log_that_is_not_known_are_refused(patience: Any, known: bool) -> None:
    check_take_over(None, known=known)
    check_take_over(0.0)
    with pytest.raises(ConfigurationError, match="take_over"):
        check_take_over(patience, known=known)


class Engine:
    """Runs of one pipeline of the embedded engine, which share a log, checkpoints and a target."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, Target()

    def made(self, rows: Slowly, uid: str = "numbers", **options: Any) -> Any:
        made = pipeline(
            **options,
            checkpointing=CheckpointConfig(interval=0.2),
            store=DirectoryStore(self.folder / "log"),
            backend=FileBackend(self.folder / "state"),
        )
        made.source(rows, uid=uid).sink(TargetSink(self.target))
        return made

    def start(self, rows: Slowly, **options: Any) -> Any:
        return self.made(rows).start(**options)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_a_run_of_the_engine_ends_after_a_checkpoint_and_the_next_one_goes_on_from_it(engine: Engine) -> None:
    rows = numbers(100, keys=5)
    first, second = Slowly(rows, batch_rows=10), Slowly(rows, batch_rows=10)
    old = engine.start(first)
    reach(first, old, 4)
    new = engine.start(second, take_over=20.0)
    assert old.wait(5)
    assert old.state is JobState.FINISHED
    assert new.restored is not None
    second.let(10)
    assert new.wait(20)
    assert engine.target.counts("n") == Counter(range(100))


def test_a_run_of_the_engine_goes_on_if_its_successor_dies_before_it_starts(engine: Engine) -> None:
    first = Slowly(numbers(100, keys=5), batch_rows=10)
    old = engine.start(first)
    reach(first, old, 4)
    successor = Successor(DirectoryStore(engine.folder / "log"), 20.0)
    steps = successor.take(lambda: pytest.fail("it dies before"))
    while old.state is JobState.RUNNING:  # a checkpoint, and then it waits
        time.sleep(next(steps))
    first.let(10)
    assert old.wait(SILENT_SECONDS + 20)
    assert old.restarts == 0
    assert engine.target.counts("n") == Counter(range(100))


class Failing(Slowly):
    """Fails once when it is told to."""

    def latest(self, position: Any, limit: int | None = None, until: Any = None) -> Any:
        if self.state.pop("fails", None):
            raise OSError("the source has gone away")
        return super().latest(position, limit, until)


def test_a_run_of_the_engine_that_fails_when_it_is_asked_goes_on_if_its_successor_has_gone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take its own START, that of its restart, for the successor's."""
    first = Failing(numbers(100, keys=5), batch_rows=10)
    old = engine.start(first)
    reach(first, old, 4)
    is_asked, failed = Predecessor.is_asked, threading.Event()

    def and_fail(self: Predecessor) -> bool:
        asked = is_asked(self)
        if asked and not failed.is_set():
            first.state["fails"] = 1
            while old.restarts == 0:
                time.sleep(0.01)
            failed.set()
        return asked

    monkeypatch.setattr(Predecessor, "is_asked", and_fail)
    steps = Successor(DirectoryStore(engine.folder / "log"), 20.0).take(lambda: pytest.fail("it dies before"))
    while not failed.is_set():
        time.sleep(next(steps))
    while old.state is not JobState.RUNNING:
        assert not old.wait(0.01)
    assert not old.wait(2 * LOOK_SECONDS)
    first.let(10)
    assert old.wait(20)
    assert engine.target.counts("n") == Counter(range(100))


class Absent(Slowly):
    """Is away, or takes its time, until it is told where it begins."""

    def start(self) -> Any:
        if self.state.get("away"):
            raise OSError("the source is away")
        while self.state.get("waits"):
            time.sleep(0.01)
        return super().start()


def test_a_run_of_the_engine_that_waits_for_its_next_attempt_makes_room_at_once(engine: Engine) -> None:
    """It has put no START: its next attempt would fence the driver that had not asked it."""
    rows = numbers(100, keys=5)
    first, second = Absent(rows, batch_rows=10), Slowly(rows, batch_rows=10)
    first.state["away"] = 1
    old = engine.made(first, restart=RestartStrategy.fixed_delay(attempts=20, delay=600)).start()
    assert old.state is JobState.RESTARTING
    new = engine.start(second, take_over=20.0)
    assert old.wait(1)
    assert old.state is JobState.FINISHED
    second.let(10)
    assert new.wait(20)
    assert engine.target.counts("n") == Counter(range(100))


def test_a_run_of_the_engine_that_waits_for_its_next_attempt_goes_on_if_its_successor_dies(engine: Engine) -> None:
    first = Absent(numbers(100, keys=5), batch_rows=10)
    first.state["away"] = 1
    old = engine.made(first, restart=RestartStrategy.fixed_delay(attempts=20, delay=4)).start()

    def die() -> None:
        raise DiedError

    with pytest.raises(DiedError):
        run_steps(Successor(DirectoryStore(engine.folder / "log"), 20.0).take(die))
    first.state["away"] = 0
    first.let(10)
    assert old.wait(SILENT_SECONDS + 20)
    assert old.state is JobState.FINISHED
    assert engine.target.counts("n") == Counter(range(100))


def test_a_run_of_the_engine_that_still_starts_is_waited_for(engine: Engine) -> None:
    rows = numbers(100, keys=5)
    first, second = Absent(rows, batch_rows=10), Slowly(rows, batch_rows=10)
    first.state["waits"] = 1
    made = engine.made(first)
    threading.Thread(target=made.start, daemon=True).start()
    threading.Timer(SILENT_SECONDS + 2, lambda: first.state.pop("waits")).start()
    new = engine.start(second, take_over=60.0)
    assert made.wait(5)
    second.let(10)
    assert new.wait(20)
    assert engine.target.counts("n") == Counter(range(100))


class Speechless(Slowly):
    @property
    def reads(self) -> str:
        raise ZeroDivisionError


def test_a_source_that_cannot_say_what_it_reads_fails_a_start_and_hangs_none(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        engine.start(Speechless(numbers(10, keys=5), batch_rows=10))


def test_a_pipeline_that_waits_until_its_run_has_ended_takes_over_too(engine: Engine) -> None:
    source = Slowly(numbers(10, keys=5), batch_rows=10)
    source.let(1)
    engine.made(source).run(take_over=20.0)
    assert engine.target.counts("n") == Counter(range(10))


def test_what_a_start_would_refuse_is_refused_while_the_other_run_still_works(engine: Engine) -> None:
    first = Slowly(numbers(100, keys=5), batch_rows=10)
    old = engine.start(first)
    reach(first, old, 4)
    with pytest.raises(OncewardError, match="numbers"):
        engine.made(first, uid="renamed").start(take_over=20.0)
    first.let(10)
    assert old.wait(20)
    assert old.restarts == 0
    assert engine.target.counts("n") == Counter(range(100))


def test_a_run_that_is_stopped_while_it_asks_for_the_pipeline_does_not_start(engine: Engine) -> None:
    store = DirectoryStore(engine.folder / "log")
    LogWriter(store, "p", policy()).start()  # a driver that never answers
    keys = store.list_keys()
    made = engine.made(Slowly(numbers(10, keys=5), batch_rows=10))
    started = threading.Thread(target=made.start, kwargs={"take_over": 600.0}, daemon=True)
    started.start()
    while len(store.list_keys()) == len(keys):
        time.sleep(0.05)
    made.stop()
    started.join(10)
    assert not started.is_alive()
    assert store.list_keys() == keys
