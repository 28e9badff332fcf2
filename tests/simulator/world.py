"""The scheduler: processes and tasks as greenlets, points where they meet the world, and disturbances there.

Only one greenlet runs at a time, and it goes on until it waits, ends, or a disturbance interrupts it at a point. So a
run is a function of its plan.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import greenlet

from .plan import NO_EXCUSE, Event, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.core.kit.crash_points import Step

    from .plan import Plan

TOO_LONG = 60_000
"""Ticks after which a run counts as stuck."""
LONGEST_NAP = 600


class Killed(BaseException):
    """The process of the running greenlet is dead."""


class Violation(BaseException):
    """A broken promise: the number of the invariant (or a word), and what was seen."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"[{law}] {what}")
        self.law = law


class Process:
    """A Python process: it dies as a whole, and what it remembers dies with it."""

    def __init__(self, world: World, name: str, driver: Any = None) -> None:
        self.world = world
        self.name = name
        self.driver = driver
        self.operated: Any = None
        """Store of the log that an operator works on in it."""
        self.alive = True
        self.wakes = 0
        self.machine = world.machines.setdefault(" ".join(name.split()[:2]), len(world.machines))
        self.memory: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def store(self) -> Any:
        """Store of the log with which it works; None if it works with none."""
        return self.operated if self.driver is None else self.driver.store

    def clock(self) -> float:
        """Ticks, by the clock of its machine: no two show the same time, nor go at the same pace."""
        return (self.world.tick + self.machine * 7919 % 10007) * (1.0, 0.95, 1.05)[self.machine % 3]


class Task:
    """One thread of control in a process."""

    def __init__(self, process: Process, name: str, body: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.body = body
        self.done = False
        self.result: object = None
        self.error: BaseException | None = None
        self.waits: Callable[[], bool] | None = None
        self.store_faults: list[int] = []
        self.target_faults: list[int] = []
        self.role = ""
        self.context: Any = None
        self.input = ""
        self.driver: Any = None
        """For which driver a task of Spark runs."""
        self.greenlet = greenlet.greenlet(self._run, parent=process.world.hub)

    def _run(self) -> None:
        try:
            self.result = self.body()
        except (Killed, greenlet.GreenletExit) as end:
            self.error = end
        except Violation:
            self.done = True
            raise
        except Exception as error:  # noqa: BLE001 - whoever started the task judges it
            self.error = error
        self.done = True


class World:
    """Everything that exists in one run."""

    def __init__(self, plan: Plan, *, tracing: bool = False) -> None:
        self.plan = plan
        self.hub = greenlet.getcurrent()
        self.tick = 0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.late: list[tuple[str, Callable[[], object]]] = []
        self.trace: list[str] | None = [] if tracing else None
        self.disturbed = 0
        self.machines: dict[str, int] = {}
        """A driver and the Python processes beside it, or an executor, by the beginning of the processes' names."""
        self.excuses = 0
        """Disturbances that may make a healthy target's transactions expire; an outage of another one may not."""
        self.troubled_until = -1
        """The end of the longest trouble that was begun."""
        self.calm = False
        self.landing = False
        """Whether something arrives now that was sent long ago."""
        self.folders: dict[str, Any] = {}
        self.outside: dict[str, object] = {"World": self}
        """What exists outside of all processes."""
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._number = count()
        self.actions: dict[Kind, Callable[[int], None]] = {}
        self._events: list[Event] = list(plan.events)
        self._next = self._events[0].tick if self._events else TOO_LONG
        self._count = 0

    # What tasks call

    def point(self, what: str) -> None:
        """The running task meets the world; here it may be interrupted, disturbed or killed."""
        task = self.current
        assert task is not None
        if not task.process.alive:
            raise Killed
        self.tick += 1
        if self.trace is not None:
            self.note(f". {what}")
        while self._timers and self._timers[0][0] <= self.tick:
            heappop(self._timers)[2]()
        if self.tick >= self._next:
            self._disturb(task)

    def hook(self, step: Step) -> None:
        """For core.steps.hooked."""
        self.point(step.value)

    def note(self, text: str) -> None:
        """A line for the trace."""
        if self.trace is not None:
            who = f"{self.current.process.name}/{self.current.name}" if self.current is not None else "-"
            self.trace.append(f"{self.tick:5d} {who:28s} {text}")

    def sleep(self, _seconds: float = 0.0) -> None:
        """Let everybody else go on first."""
        self.tick += 1
        self._yield()

    def nap(self, ticks: int) -> None:
        """The running process does nothing for a while."""
        assert self.current is not None
        self.current.process.wakes = self.tick + ticks
        self._yield()

    def at(self, tick: int, effect: Callable[[], object]) -> None:
        """Something that happens by itself."""
        heappush(self._timers, (tick, next(self._number), effect))

    def trouble(self, ticks: int) -> int:
        """When a trouble ends that begins now."""
        self.troubled_until = max(self.troubled_until, self.tick + ticks)
        return self.tick + ticks

    def wait(self, until: Callable[[], bool]) -> None:
        """Block the running task until the condition holds."""
        task = self.current
        assert task is not None
        if not until():
            task.waits = until
            self._yield()

    def side_by_side(self, calls: Sequence[Callable[[], None]]) -> None:
        """As core.policy.side_by_side: each call is a task of the running process."""
        if len(calls) == 1:
            calls[0]()
            return
        assert self.current is not None
        process, role = self.current.process, self.current.role
        tasks = [self.start(process, f"call {number}", call, role) for number, call in enumerate(calls)]
        self.wait(lambda: all(task.done for task in tasks))
        for task in tasks:
            if task.error is not None:
                raise task.error

    def clock(self) -> float:
        """What the running process takes for the time, in ticks."""
        return self.current.process.clock() if self.current is not None else float(self.tick)

    def token(self) -> str:
        """A fresh identity."""
        self._count += 1
        return f"{self._count:08x}{self._count:08x}"

    # What drivers and disturbances call

    def start(self, process: Process, name: str, body: Callable[[], object], role: str = "") -> Task:
        """A new task; it runs when its turn comes."""
        task = Task(process, name, body)
        task.role = role
        self.tasks.append(task)
        return task

    def kill(self, process: Process) -> None:
        """The process dies: its tasks end at once, without any effect on the world."""
        if process.alive:
            self.note(f"KILLED {process}")
            process.alive = False

    def run(self) -> None:
        """Go on until nothing can go on."""
        while True:
            task = self._choose()
            if task is None:
                return
            self._resume(task)
            if self.tick > TOO_LONG:
                raise Violation("progress", f"still running after {self.tick} ticks")

    def running(self, *roles: str) -> list[Task]:
        """Tasks of these roles that have not ended."""
        return [t for t in self.tasks if t.role in roles and not t.done and t.process.alive]

    def later(self, what: str, effect: Callable[[], object]) -> None:
        """Something that arrives late, or never."""
        self.late.append((what, effect))

    def land(self, number: int) -> None:
        """One late thing arrives."""
        if self.late:
            what, effect = self.late.pop(number % len(self.late))
            self.note(f"LATE {what}")
            self.landing = True
            try:
                effect()
            finally:
                self.landing = False

    # How it works

    def _yield(self) -> None:
        task = self.current
        assert task is not None
        self.tasks.remove(task)
        self.tasks.append(task)
        self.hub.switch()
        if not task.process.alive:
            raise Killed

    def _choose(self) -> Task | None:
        asleep: list[Task] = []
        for task in self.tasks:
            if not task.process.alive:
                return task
            if task.waits is not None and not task.waits():
                continue
            if task.process.wakes > self.tick:
                asleep.append(task)
                continue
            task.waits = None
            return task
        if not asleep:
            return None
        first = min(asleep, key=lambda t: t.process.wakes)
        self.tick = first.process.wakes
        return first

    def _resume(self, task: Task) -> None:
        self.current = task
        try:
            if task.process.alive:
                task.greenlet.switch()
            elif task.greenlet:
                task.greenlet.throw(Killed)
            else:
                task.error, task.done = Killed(), True
        finally:
            self.current = None
        if task.done and task in self.tasks:
            self.tasks.remove(task)

    def _disturb(self, task: Task) -> None:
        event = self._events.pop(0)
        self._next = self._events[0].tick if self._events else TOO_LONG * 2
        if self.calm:
            return
        self.disturbed += 1
        self.excuses += event.kind not in NO_EXCUSE
        self.note(f"*** {event.kind} {event.arg}")
        match event.kind:
            case Kind.SWITCH:
                self._yield()
            case Kind.NAP:
                task.process.wakes = self.tick + event.arg % LONGEST_NAP
                self.at(task.process.wakes, self._excuse)  # for what began meanwhile, too
                if event.arg % 2 and task.role in ("driver", "python"):  # taken for dead, and replaced
                    self.actions[Kind.TWIN](event.arg)
                self._yield()
            case Kind.CRASH:
                self._crash(task.process, event.arg)
                raise Killed
            case Kind.STORE_FAULT:
                task.store_faults = [event.arg] * (1 + event.arg // 16 % 4)
            case Kind.TARGET_FAULT:
                task.target_faults = [event.arg] * (1 + event.arg // 16 % 3)
            case Kind.LAND:
                self.land(event.arg)
            case _:
                self.actions[event.kind](event.arg)
                if not task.process.alive:
                    raise Killed

    def _excuse(self) -> None:
        self.excuses += 1

    def _crash(self, process: Process, arg: int) -> None:
        self.actions[Kind.CRASH](arg)
        self.kill(process)

    def close(self) -> None:
        """End every task that is left, so that nothing of this run stays alive."""
        for task in list(self.tasks):
            task.process.alive = False
            if task.greenlet:
                self.current = task
                task.greenlet.throw(Killed)
        self.tasks.clear()
        self.current = None
