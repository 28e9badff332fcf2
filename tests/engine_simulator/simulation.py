"""One run: a scheduler that picks by its seed what happens next, and crashes, delays and loses things meanwhile.

Each crash drops the whole machine; what remains is the decision log, the state that was written out, and the target.
A machine that was dropped may live on for a while as a zombie beside its successor. The command line is repeated at
each start, and changed now and then: it may name any savepoint or checkpoint that was ever seen, decided or not. At the
end one more start sweeps, and the laws are checked:

1. Nothing is missing, whatever was restored.
2. Each record's effect shows once; once more, at most, for each reason that was given for going back.
3. Nothing is left prepared.
4. A run that a newer one has fenced does not start again by itself: it would fence the newer one.
5. Rows are whole, with all their types, as a plain interpreter of the graph gives them, and so is the last state.
6. A timer that was due when its operator looked for the last time has fired.
7. No start and no run takes a target for one that has lost something, unless it has.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import fsspec

from onceward.core import CheckpointConfig, CheckpointMode, FileBackend, MemoryBackend
from onceward.core.checkpoint import Backoff, CommitPolicy, OnLost
from onceward.core.engine.attempt import Attempt
from onceward.core.engine.batch_sizing import Pace
from onceward.core.engine.channels import Barrier, CheckpointKind
from onceward.core.engine.coordinator_events import Acknowledged, Event, Requested, Status, Tick
from onceward.core.engine.reference import Decided, resolve_reference
from onceward.core.engine.start import EngineWorld, Setup, run_of, start
from onceward.core.engine.starting_checkpoint import Restore
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import ConfigurationError, OncewardError, StateError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import RunWriters
from onceward.core.log.reader import read

from ..sink_kit import Target
from .graphs import VALUES, RandomGraph
from .interpreter import Interpreter, State
from .operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.engine.channels import TaskId
    from onceward.core.engine.start import StartedAttempt
    from onceward.core.engine.task import Task

MOST_STEPS = 200_000
QUICK = 30.0
"""Timeout of a checkpoint, in seconds, within which one comes through only if tasks work on whole batches."""
MOST_ATTEMPTS = 60


class Crash(BaseException):
    """The process ends here."""


class AnyPace(Pace):
    """Works on any number of rows at once, as if their cost changed from part to part."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def up_to(self, room: Iterable[int]) -> int:  # noqa: ARG002 - signature
        return self._random.choice([2, 100, 100, 100, 100, 100])


class Machine(Attempt):
    """An attempt whose disk is full now and then, and what waits to be done around it."""

    def __init__(self, started: StartedAttempt, run_writers: RunWriters, simulation: Simulation) -> None:
        self.simulation = simulation
        self.run_writers = run_writers
        self.events: deque[Event] = deque()
        self.later: list[Callable[[], None]] = []
        self.awake: set[TaskId] = set()
        """Tasks that may have something to do."""
        self.jump = 0.01
        """Seconds that pass at once where nothing happens: more and more, as a run may wait for a timeout."""
        self.looked: dict[TaskId, float] = {}
        super().__init__(started)
        for task in self.tasks.values():
            self.note_looks(task)
            if simulation.config.timeout > QUICK:
                task.pace = AnyPace(simulation.paces)
            self.open(task)
        self.pace = {id_: simulation.random.choice([1.0, 1.0, 0.4, 0.1]) for id_ in self.tasks}

    def note_looks(self, task: Task) -> None:
        timers = task.logic.timers

        def noted(now: float, enough: Callable[[], bool]) -> Any:
            self.looked[task.id] = now
            return timers(now, enough)

        task.logic.timers = noted  # type: ignore[method-assign]

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def wake(self, task: TaskId) -> None:
        self.awake.add(task)

    def run_later(self, work: Callable[[], None]) -> None:
        self.later.append(work)

    def close(self) -> None:
        for task in self.tasks.values():
            with suppress(OncewardError):
                task.logic.close()

    def _place(self, barrier: Barrier) -> Any:
        if self.simulation.loses():
            self.simulation.note(f"no place for checkpoint {barrier.checkpoint}")
            raise StateError("disk full")
        return super()._place(barrier)


class ViolationError(AssertionError):
    """A promise was broken; the message has the seed."""


class Simulation:
    """One run of one seed.

    Args:
        seed: Decides everything.
        mode: Of the engine.
        values: Of the fields of records.
    """

    def __init__(self, seed: int, mode: CheckpointMode = "exactly-once", values: Sequence[Any] = VALUES) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.target = Target()
        self.time = 1000.0
        """Since boot, in seconds."""
        self.ahead = 0.0
        """Seconds by which the system's clock is ahead of that."""
        self.trace: list[str] = []
        self.config = CheckpointConfig(
            interval=self.random.choice([0.03, 0.1, 0.5]),
            timeout=self.random.choice([QUICK, 80.0]),
            min_pause=self.random.choice([0.0, 0.0, 0.05]),
            max_concurrent=self.random.choice([1, 1, 2, 3]),
            tolerable_failures=self.random.choice([0, 3, 100]),
            retained=self.random.choice([1, 2]),
            mode=mode,
        )
        self.folder_name = f"memory://onceward-simulated-{seed}"
        backend = self.random.choice([MemoryBackend, lambda: FileBackend(f"{self.folder_name}/state")])()
        self.graph = RandomGraph(self.random, self.target, values, checkpointing=self.config, backend=backend)
        self.clock = Random(f"clock {seed}")
        """Of when the system's clock is set, and by how much."""
        self.jumps = self.clock.choice([0, 0, 0, 3])
        self.world = EngineWorld(
            now=self.now,
            between=self.random.uniform,
            choose=self.random.choice,
        )
        self.paces = Random(seed)
        """Of how many rows each task works on at once."""
        self.linger = Random(f"linger {seed}").choice([0.0, 0.0, 0.002, 0.1])
        """Seconds for which sources wait for more rows."""
        self.order = Random(seed)
        """Of what happens at the same time."""
        pause = Backoff(attempts=12, sleep=self.pass_time, fraction=self.random.random)
        self.policy = CommitPolicy(
            on_lost=OnLost.REPLAY,
            commits=pause,
            puts=pause,
            make_all=self.in_any_order,
            monotonic=lambda: self.time,
            token=lambda: f"{self.random.getrandbits(64):016x}",
        )
        self.crashes = self.random.choice([0, 1, 2, 4, 8])
        self.losses = self.random.choice([0, 0, 1, 3])
        self.likely = self.random.choice([0.001, 0.006, 0.03])
        self.savepoints = self.random.choice([0, 1, 2, 4])
        self.suspends = self.random.choice([0, 1, 2])
        self.suspended_into = ""
        self.requested: list[str] = []
        self.vanishing = self.random.choice([0, 1, 2])
        # An epoch that is computed again has other rows where timers fire; and rows with structs have no hash.
        if self.graph.timed or self.graph.nested:
            self.vanishing = 0
        if mode != "exactly-once":  # without alignment, an epoch that is computed again may have other rows
            self.vanishing = 0
        self.operator = Operator(self.random, self.random.choice([0, 2, 4]) if mode == "exactly-once" else 0)
        self.crashes += self.operator.changes  # a command line that is not repeated shows little
        self.rescales = mode == "exactly-once" and self.paces.random() < 0.5 and not self.vanishing
        """Whether each start has other numbers of subtasks. A lost epoch must be computed again with the same."""
        self.scaled = self.graph.pipeline.graph
        self.run_writers = RunWriters()
        self.machine: Machine | None = None
        self.zombie: Machine | None = None
        self.torn = self.healed = 0
        self.looked: dict[TaskId, float] = {}
        """When each task of the last run looked for timers the last time."""

    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    def now(self) -> float:
        """Return what the system's clock shows."""
        return self.time + self.ahead

    def set_clock(self) -> None:
        """Set the system's clock forward or back. What is due then was not due when operators looked before."""
        self.jumps -= 1
        self.ahead += self.clock.choice([-3600.0, -1.0, -0.05, 0.05, 1.0, 3600.0])
        self.note(f"the clock is set to {self.now():.2f}")
        for machine in filter(None, [self.machine, self.zombie]):
            machine.looked.update({task: min(at, self.now()) for task, at in machine.looked.items()})

    def in_any_order(self, calls: Sequence[Callable[[], None]]) -> None:
        for call in self.order.sample(calls, len(calls)):
            call()

    def run(self) -> Simulation:
        """Run to the end and check.

        Raises:
            ViolationError: A promise was broken.
        """
        try:
            with hooked(self.reach):
                attempts = 1
                while not self.one_attempt():
                    attempts += 1
                    if attempts > MOST_ATTEMPTS:
                        raise ViolationError(self.said("starts again and again"))
                self.crashes = self.vanishing = self.operator.changes = 0
                while self.start() is None:  # sweeps what a zombie prepared late
                    pass
            self.check()
        except OncewardError as error:
            raise ViolationError(self.said("ends with", f"{type(error).__name__}: {error}")) from error
        finally:
            with suppress(FileNotFoundError):
                fsspec.filesystem("memory").rm(self.folder_name.removeprefix("memory:/"), recursive=True)
        return self

    def reach(self, step: Step) -> None:
        if step is Step.DECIDE_AFTER and self.vanishing and self.random.random() < 0.3:
            self.vanishing -= 1
            self.forget_decided()
        if self.crashes and self.random.random() < self.likely * (30 if step is Step.DECIDE_BEFORE else 3):
            self.crash(f"at {step}")

    def forget_decided(self) -> None:
        """The target loses what was just decided, or what was decided of one sink.

        A replay is sound only if none of it can be committed; else the part that is lost must be computed again.
        """
        decision = read(self.graph.pipeline.setup.store).newest
        decided = decision.committables if decision is not None else ()
        sinks = sorted({c.sink for c in decided})
        if len(sinks) > 1 and self.random.random() < 0.7:
            sinks = [self.random.choice(sinks)]
            self.torn += 1
        names = {c.transaction for c in decided if c.sink in sinks}
        self.note(f"the target forgets {len(names)} decided transactions")
        for name in names:
            self.target.prepared.pop(name, None)

    def crash(self, where: str) -> None:
        self.crashes -= 1
        self.note(f"crash {where}")
        raise Crash(where)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.time:9.2f} {what}")

    def setup(self) -> Setup:
        setup = self.graph.pipeline.setup
        return setup._replace(
            graph=self.scaled, config=self.config, policy=self.policy, world=self.world, linger=self.linger
        )

    def one_attempt(self) -> bool:
        """Start and drive a machine until it ends (True), fails or crashes."""
        attempt = None
        try:
            started = self.start()
            if started is None:
                return False
            attempt = Machine(started, self.run_writers, self)
            return self.drive(attempt)
        except Crash:
            if attempt is not None and self.zombie is None and self.random.random() < 0.3:
                self.zombie = attempt
                attempt = None
            return False
        except ConfigurationError as error:
            if not self.graph.mixed or "If these keys are meant" not in str(error):
                raise
            self.note(f"failed: {error}")
            self.operator.accepts_new_types = True
            return False
        finally:
            if attempt is not None:
                attempt.close()

    def start(self) -> StartedAttempt | None:
        """Start with the operator's command line, some time later; None if it is refused."""
        self.pass_time(self.order.choice([0.0, 0.05, 1.0]))
        self.look_around()
        command = self.operator.next()
        try:
            self.run_writers = RunWriters()
            if self.rescales:
                self.scaled = self.graph.rescaled()
            setup = self.setup()
            started = start(setup, command, run_of(setup, writers=self.run_writers))
        except Crash:
            self.operator.accepted()
            raise
        except OncewardError as error:
            self.note(f"{command} is refused: {error}")
            self.operator.refused(error)
            return None
        self.operator.accepted()
        self.note(f"started with {command} at {started.restored}, next is checkpoint {started.next_id}")
        return started

    def drive(self, machine: Machine) -> bool:
        self.looked, self.machine = machine.looked, machine
        for _ in range(MOST_STEPS):
            if self.operator.changes and self.random.random() < 0.01:
                self.look_around()
            if machine.all_finished:
                kind = next(r.kind for r in reversed(machine.history) if r.status == Status.COMPLETED)
                self.note(f"finished with a {kind} checkpoint")
                self.healed += kind in {CheckpointKind.AGAIN.name.lower(), CheckpointKind.AGAIN_DRAINED.name.lower()}
                if kind == CheckpointKind.SUSPEND.name.lower():
                    self.operator.change(Restore(path=self.suspended_into))
                return kind == CheckpointKind.FINAL.name.lower()
            if machine.failure is not None:
                self.note(f"failed: {machine.failure}")
                return False
            if self.crashes and self.random.random() < self.likely:
                self.crash("between two steps")
            self.one_step(machine)
            if self.zombie is not None and self.random.random() < 0.2:
                self.step_zombie(self.zombie)
        raise ViolationError(f"seed {self.seed} comes to no end\n{self.story()}")

    def one_step(self, machine: Machine) -> None:
        """Let one thing happen: a task's step, a message, an asynchronous part, or some time."""
        if self.savepoints and self.random.random() < 0.006:
            self.savepoints -= 1
            self.savepoint(machine, CheckpointKind.SAVEPOINT)
        if self.suspends and self.random.random() < 0.003:
            self.suspends -= 1
            self.savepoint(machine, CheckpointKind.SUSPEND)
        if self.jumps and self.clock.random() < 0.01:
            self.set_clock()
        what = self.random.random()
        if not (machine.awake or machine.events or machine.later):
            machine.jump = min(1.0, 2 * machine.jump)
            self.pass_time(self.random.random() * machine.jump)
            machine.awake.update(machine.tasks)
            machine.handle(Tick())
        elif what < 0.70 and machine.awake:
            self.step(machine, machine.tasks[self.random.choice(sorted(machine.awake))])
        elif what < 0.85 and machine.events:
            self.deliver(machine)
        elif what < 0.95 and machine.later:
            machine.later.pop(self.random.randrange(len(machine.later)))()
        else:
            self.pass_time(self.random.choice([0.002, 0.01, 0.04]))
            for task in machine.tasks.values() if self.graph.timed else ():
                if (at := task.wake_at()) is not None and at <= self.now():
                    machine.wake(task.id)
            machine.handle(Tick())

    def step(self, machine: Machine, task: Task) -> None:
        """Let a task work, unless it is a slow one. It sleeps if it has nothing to do, until it is woken."""
        if self.random.random() >= machine.pace[task.id]:
            return
        machine.awake.remove(task.id)
        if task.step():
            machine.wake(task.id)
            machine.jump = 0.01

    def deliver(self, machine: Machine) -> None:
        event = machine.events.popleft()
        if isinstance(event, Acknowledged) and self.loses():
            self.note("an acknowledgement is lost")
            return
        machine.handle(event)

    def loses(self) -> bool:
        """Whether something goes wrong now."""
        if not self.losses or self.random.random() >= 0.1:
            return False
        self.losses -= 1
        return True

    def savepoint(self, machine: Machine, kind: CheckpointKind) -> None:
        """Ask for one, somewhere new."""
        folder = f"{self.folder_name}/save-{len(self.trace)}"
        self.note(f"{kind.name} into {folder} is asked for")
        self.requested.append(folder)
        if kind is CheckpointKind.SUSPEND:
            self.suspended_into = folder
        machine.handle(Requested(kind, folder))

    def look_around(self) -> None:
        """The operator sees what savepoints and checkpoints there are, decided or not."""
        own = self.graph.pipeline.setup.backend.storage
        logs = own._files.names("") if own is not None else []
        storages = [CheckpointStorage(own.at(log)) for log in logs] if own is not None else []
        there = [storage.at(name) for storage in storages for name in storage.checkpoints()]
        there += [folder for folder in self.requested if not CheckpointStorage(folder).is_empty]
        self.operator.there = there
        self.operator.folders += [folder for folder in there if folder not in self.operator.folders]

    def step_zombie(self, zombie: Machine) -> None:
        """It does not know that it should be dead; the decision log stops it."""
        left, self.crashes = self.crashes, 0
        try:
            self.one_step(zombie)
            ended = zombie.failure is not None or zombie.all_finished
        except OncewardError:
            ended = True
        finally:
            self.crashes = left
        if ended or self.random.random() < 0.002:
            self.note("the zombie is gone")
            zombie.close()
            self.zombie = None
            self.restart_by_itself(zombie)

    def restart_by_itself(self, zombie: Machine) -> None:
        """Have the older run do what its restart strategy asks for.

        Raises:
            ViolationError: It has fenced the newer run.
        """
        store = self.graph.pipeline.setup.store
        left, self.crashes, entries = self.crashes, 0, set(store.list_keys())
        try:
            setup = self.setup()
            start(setup, Restore(), run_of(setup, writers=zombie.run_writers), again=True)
        except OncewardError as error:
            self.note(f"the older run does not start again: {error}")
        if not entries.issuperset(store.list_keys()):
            raise ViolationError(self.said("an older run has started again beside a newer one"))
        self.crashes = left

    def check(self) -> None:
        """Exactly once: as often as expected, with each way back once more at most. At least once: not less often."""
        most = 1 + len(self.operator.ways_back)
        exactly_once = self.config.mode == "exactly-once"
        state = self.last_state() if exactly_once else State()
        if late := [timer for timer in state.timers if timer[0] <= self.looked_by(timer[1])]:
            raise ViolationError(self.said("has not fired", late))
        plain = Interpreter(self.graph.pipeline.graph, state).fire()
        not_yet = self.graph.rows(plain)
        for name, expected in self.graph.expected.items():
            seen = self.graph.seen(name) + not_yet[name]
            if exactly_once:
                duplicated = seen - Counter({row: count * most for row, count in expected.items()})
                if expected - seen or duplicated:
                    raise ViolationError(self.said(name, "missing", expected - seen, "too often", duplicated))
            elif name == "plain" and expected - seen:
                raise ViolationError(self.said(name, "missing", expected - seen))
        if exactly_once and plain.state.shown() != self.graph.state:
            differences = plain.state.shown().items() ^ self.graph.state.items()
            raise ViolationError(self.said("the state differs in", sorted(differences)))
        if self.target.prepared:
            raise ViolationError(self.said("target", "left prepared", list(self.target.prepared)))

    def looked_by(self, uid: str) -> float:
        """When all subtasks of an operator had looked for timers, the last time."""
        return min(at for task, at in self.looked.items() if task.uid == uid)

    def last_state(self) -> State:
        """Read the state that a next run would go on from."""
        decided = Decided.of(read(self.graph.pipeline.setup.store).newest)
        assert decided is not None
        return State.of(self.graph.pipeline.graph, *resolve_reference(decided.checkpoint))

    @property
    def duplicated(self) -> bool:
        """Whether some record's effect shows more than once."""
        return any(self.graph.seen(name) - expected for name, expected in self.graph.expected.items())

    def said(self, *what: Any) -> str:
        return f"seed {self.seed}: {' '.join(map(str, what))}\n{self.story()}"

    def story(self) -> str:
        return "\n".join(self.trace[-60:])
