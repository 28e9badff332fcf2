"""One run: a scheduler that picks by its seed what happens next, and crashes, delays and loses things meanwhile.

Each crash drops the whole machine; what remains is the decision log, the state that was written out, and the target.
A machine that was dropped may live on for a while as a zombie beside its successor. At the end one more start sweeps,
and every record's effect must show exactly once.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from onceward.core import CheckpointConfig
from onceward.core.checkpoint import Backoff, CommitPolicy
from onceward.core.engine import EngineWorld, Mode
from onceward.core.engine.elements import Barrier, Kind
from onceward.core.engine.machine import Machine
from onceward.core.engine.start import Restore, Starter
from onceward.core.errors import OncewardError, StateError
from onceward.core.steps import Step, hooked

from ..engine_kit import Target
from .graphs import RandomGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.core.engine.elements import TaskId
    from onceward.core.engine.start import Started

MOST_STEPS = 200_000
MOST_ATTEMPTS = 60


class Crash(BaseException):
    """The process ends here."""


class FaultyMachine(Machine):
    """A machine whose disk is full now and then."""

    simulation: Simulation

    def _place(self, barrier: Barrier) -> Any:
        if self.simulation.loses():
            self.simulation.note(f"no place for checkpoint {barrier.checkpoint}")
            raise StateError("disk full")
        return super()._place(barrier)


class ViolationError(AssertionError):
    """A promise was broken; the message has the seed."""


@dataclass
class Attempt:
    """A machine, and what waits to be done around it."""

    machine: Machine
    messages: deque[Callable[[], None]] = field(default_factory=deque)
    later: list[Callable[[], None]] = field(default_factory=list)
    pace: dict[TaskId, float] = field(default_factory=dict)

    def close(self) -> None:
        for task in self.machine.tasks.values():
            with suppress(OncewardError):
                task.logic.close()


class Simulation:
    """One run of one seed.

    Args:
        seed: Decides everything.
        mode: Of the engine.
    """

    def __init__(self, seed: int, mode: Mode = Mode.EXACTLY_ONCE) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.target = Target()
        self.time = 1000.0
        self.trace: list[str] = []
        self.config = CheckpointConfig(
            interval=self.random.choice([0.03, 0.1, 0.5]),
            timeout=self.random.choice([4.0, 20.0]),
            min_pause=self.random.choice([0.0, 0.0, 0.05]),
            max_concurrent=self.random.choice([1, 1, 2, 3]),
            tolerable_failures=self.random.choice([0, 3, 100]),
            retained=self.random.choice([1, 2]),
            mode=mode,
        ).checked()
        self.graph = RandomGraph(self.random, self.target, checkpoint=self.config)
        self.world = EngineWorld(
            monotonic=lambda: self.time,
            now=lambda: self.time,
            between=self.random.uniform,
            choose=self.random.choice,
        )
        pause = Backoff(sleep=self.pass_time, fraction=self.random.random)
        self.policy = CommitPolicy(
            commits=pause, puts=pause, monotonic=lambda: self.time, token=lambda: f"{self.random.getrandbits(64):016x}"
        )
        self.crashes = self.random.choice([0, 1, 2, 4, 8])
        self.losses = self.random.choice([0, 0, 1, 3])
        self.likely = self.random.choice([0.0005, 0.003, 0.02])
        self.savepoints = self.random.choice([0, 0, 1, 2])
        self.zombie: Attempt | None = None

    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    def run(self) -> Simulation:
        """Run to the end and check.

        Raises:
            ViolationError: A promise was broken.
        """
        with hooked(self.reach), TemporaryDirectory(prefix="onceward-simulated-") as self.folder_name:
            attempts = 1
            while not self.one_attempt():
                attempts += 1
                if attempts > MOST_ATTEMPTS:
                    raise ViolationError(self.said("starts again and again"))
            self.crashes = 0
            self.starter().start(Restore())  # sweeps what a zombie prepared late
        self.check()
        return self

    def reach(self, step: Step) -> None:
        if self.crashes and self.random.random() < self.likely * 3:
            self.crash(f"at {step}")

    def crash(self, where: str) -> None:
        self.crashes -= 1
        self.note(f"crash {where}")
        raise Crash(where)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.time:9.2f} {what}")

    def starter(self) -> Starter:
        p = self.graph.pipeline
        return Starter(
            p.name, p.graph, p.store, backend=p.backend, config=self.config, policy=self.policy, world=self.world
        )

    def one_attempt(self) -> bool:
        """Start and drive a machine until it ends (True), fails or crashes."""
        attempt = None
        try:
            started = self.starter().start(Restore())
            self.note(f"started, next is checkpoint {started.next_id}")
            attempt = self.machine(started)
            return self.drive(attempt)
        except Crash:
            if attempt is not None and self.zombie is None and self.random.random() < 0.3:
                self.zombie = attempt
                attempt = None
            return False
        finally:
            if attempt is not None:
                attempt.close()

    def machine(self, started: Started) -> Attempt:
        messages: deque[Callable[[], None]] = deque()
        later: list[Callable[[], None]] = []
        machine = FaultyMachine(
            started, self.config, self.world, run_later=later.append, tell=messages.append, wake=lambda _: None
        )
        machine.simulation = self
        for id_, task in machine.tasks.items():
            task.logic.open()
            machine.opened(id_)
        pace = {id_: self.random.choice([1.0, 1.0, 0.4, 0.1]) for id_ in machine.tasks}
        return Attempt(machine, messages, later, pace)

    def drive(self, attempt: Attempt) -> bool:
        machine = attempt.machine
        for _ in range(MOST_STEPS):
            if machine.all_finished:
                self.note("finished")
                return True
            if machine.failure is not None:
                self.note(f"failed: {machine.failure}")
                return False
            if self.crashes and self.random.random() < self.likely:
                self.crash("between two steps")
            self.one_step(attempt)
            if self.zombie is not None and self.random.random() < 0.2:
                self.step_zombie(self.zombie)
        raise ViolationError(f"seed {self.seed} comes to no end\n{self.story()}")

    def one_step(self, attempt: Attempt) -> None:
        """Let one thing happen: a task's step, a message, an asynchronous part, or some time."""
        if self.savepoints and self.random.random() < 0.002:
            self.savepoint(attempt)
        what = self.random.random()
        if what < 0.70:
            task = self.random.choice(list(attempt.machine.tasks.values()))
            if self.random.random() < attempt.pace[task.id]:
                task.step()
        elif what < 0.85 and attempt.messages:
            self.deliver(attempt)
        elif what < 0.95 and attempt.later:
            attempt.later.pop(self.random.randrange(len(attempt.later)))()
        else:
            self.time += self.random.choice([0.0005, 0.002, 0.01])
            attempt.machine.checkpoints.advance(self.time)

    def deliver(self, attempt: Attempt) -> None:
        message = attempt.messages.popleft()
        if "acknowledged" in message.__qualname__ and self.loses():
            self.note("an acknowledgement is lost")
            return
        message()

    def loses(self) -> bool:
        """Whether something goes wrong now."""
        if not self.losses or self.random.random() >= 0.1:
            return False
        self.losses -= 1
        return True

    def savepoint(self, attempt: Attempt) -> None:
        """Ask for one, somewhere new."""
        self.savepoints -= 1
        self.note("a savepoint is asked for")
        folder = f"{self.folder_name}/{self.savepoints}-{len(self.trace)}"
        attempt.machine.checkpoints.request(Kind.SAVEPOINT, self.time, folder)

    def step_zombie(self, zombie: Attempt) -> None:
        """It does not know that it should be dead; the decision log stops it."""
        left, self.crashes = self.crashes, 0
        try:
            self.one_step(zombie)
            ended = zombie.machine.failure is not None or zombie.machine.all_finished
        except OncewardError:
            ended = True
        finally:
            self.crashes = left
        if ended or self.random.random() < 0.002:
            self.note("the zombie is gone")
            zombie.close()
            self.zombie = None

    def check(self) -> None:
        """Exactly once: as often as expected. At least once: not less often."""
        for name, expected in self.graph.expected.items():
            seen = self.graph.seen(name)
            if self.config.mode is Mode.EXACTLY_ONCE:
                if seen != expected:
                    raise ViolationError(self.said(name, "missing", expected - seen, "doubled", seen - expected))
            elif name == "plain" and expected - seen:
                raise ViolationError(self.said(name, "missing", expected - seen))
        if self.target.prepared:
            raise ViolationError(self.said("target", "left prepared", list(self.target.prepared)))

    @property
    def doubled(self) -> bool:
        """Whether some record's effect shows more than once."""
        return any(self.graph.seen(name) - expected for name, expected in self.graph.expected.items())

    def said(self, *what: Any) -> str:
        return f"seed {self.seed}: {' '.join(map(str, what))}\n{self.story()}"

    def story(self) -> str:
        return "\n".join(self.trace[-60:])
