"""One run: build the world, let it be disturbed, then let a last driver go to the end in peace, and look."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onceward.cli.operate.logs import Log
from onceward.cli.operate.places import Names
from onceward.cli.operate.settle import abort_undecided, chosen, commit_decided
from onceward.cli.operate.survey import survey
from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.errors import DataLossError, OncewardError
from onceward.core.names import PooledName, Scope, TransactionName

from .audit import PIPELINE, Audit, LogAudit, Txn
from .broker import MARKERS_TAKE, Broker
from .database import Database, Held
from .database_sinks import PreparedSink, StagedSink
from .harness import inside
from .judge import judge
from .kafka_sink import KafkaLikeSink
from .pipeline import Checkpoint, Cluster, Driver, TaskFailedError
from .plan import Kind, Plan
from .store import FakeStore
from .world import Killed, Process, Task, Violation, World

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from onceward.core.transaction import Committable

STARTS = 8
"""Restarts of the driver in the disturbed part of a run."""
MOST_DRIVERS = 3
OTHER_LOG = "99999999"
FIRST_LOG = "00000002"
"""What the first START calls its log. A pipeline made by copying a checkpoint folder has the same one."""
LAST_STARTS = 8
"""Restarts in the undisturbed part; more mean that the pipeline does not recover."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a run."""

    plan: Plan
    violation: Violation | None
    ticks: int
    stopped: bool
    """Whether the pipeline stopped with a DataLossError, as it must after some disturbances."""
    trace: list[str] = field(default_factory=list)


class Here:
    """The targets, to an operator.

    Args:
        sinks: As the pipeline has them.
    """

    title = "here"

    def __init__(self, sinks: Sequence[Any]) -> None:
        self._sinks = {sink.name: sink for sink in sinks}

    def names(self, pipelines: Collection[str]) -> set[Names]:
        """See Place."""
        return {Names(pipeline, sink) for pipeline in pipelines for sink in self._sinks}

    def holds(self, kind: str, sink: str) -> bool:  # noqa: ARG002
        """See Place."""
        return sink in self._sinks

    def sink(self, name: str) -> Any:
        """See Place."""
        return self._sinks[name]


@dataclass(frozen=True)
class Parts:
    """What a mutant may replace."""

    coordinator: type[Coordinator] = Coordinator
    kafka: type[KafkaLikeSink] = KafkaLikeSink
    prepared: type[PreparedSink] = PreparedSink
    staged: type[StagedSink] = StagedSink
    driver: type[Driver] = Driver


def simulate(plan: Plan, *, tracing: bool = False, parts: Parts | None = None) -> Outcome:
    """Run a plan."""
    simulation = Simulation(plan, tracing=tracing, parts=parts or Parts())
    violation = None
    with inside(simulation.world, simulation.audit, simulation.broker):
        try:
            simulation.run()
        except Violation as broken:
            violation = broken
        finally:
            simulation.world.close()
    return Outcome(plan, violation, simulation.world.tick, simulation.stopped, simulation.world.trace or [])


class Simulation:
    """One run's world and its inhabitants."""

    def __init__(self, plan: Plan, *, tracing: bool, parts: Parts) -> None:
        self.config = plan.config
        self.parts = parts
        self.world = World(plan, tracing=tracing)
        self.audit = Audit(self.world, [f"{kind}-sink" for kind in self.config.sinks], self.config.records)
        self.broker = Broker(self.world, self.audit)
        self.database = Database(self.world, self.audit)
        self.store = FakeStore(self.world, LogAudit(self.audit), "main")
        self.cluster = Cluster(self.world)
        self.checkpoint = Checkpoint()
        self.drivers: list[tuple[Task, Driver]] = []
        self.starts = 0
        self.finished = False
        self.stopped = False
        self.crowded = False
        self.sinks = [self._sink(kind) for kind in self.config.sinks]
        self.world.actions = {
            Kind.CRASH: self._crash_executors,
            Kind.CRASH_OTHER: self._crash_other,
            Kind.TWIN: lambda _: self._twin(self.checkpoint),
            Kind.COPY: self._copy,
            Kind.IMPOSTOR: lambda _: self._impostor(),
            Kind.FOREIGN: lambda _: self._foreign(),
            Kind.TASK_FAILS: self._task_fails,
            Kind.LOSE_EXECUTOR: self._lose_executor,
            Kind.EXPIRE: self.broker.expire,
            Kind.STALE_END: self._stale_end,
            Kind.ROLLBACK: self._rollback,
            Kind.OPERATOR: self._operator,
            Kind.LOSE_LEADER: self.broker.lose_leader,
            Kind.RESTART_TARGET: lambda _: self.database.restart(),
        }
        self.operators: list[Task] = []
        self._strangers: list[Txn] = []
        self._add_strangers()

    def run(self) -> None:
        """The whole run."""
        self.world.start(Process(self.world, "supervisor"), "main", self._supervise, role="supervisor")
        self.world.run()
        self._judge_all()
        self.world.calm = True
        self.broker.recover()
        while self.world.late:
            self.world.land(0)
        self._last_drivers()
        self._check_rest()

    # The supervisor restarts the driver whenever it has died, a few times

    def _supervise(self) -> None:
        while not self.finished and not self.stopped and self.starts < STARTS:
            self.starts += 1
            task, driver = self._start_driver(self.checkpoint, self.store)
            self.world.wait(lambda task=task: task.done or not task.process.alive)  # type: ignore[misc]
            self.finished = driver.finished
            self._judge_all()

    def _start_driver(self, checkpoint: Checkpoint, store: FakeStore) -> tuple[Task, Driver]:
        number = len(self.drivers)
        driver = self.parts.driver(self.world, self.audit, self.config, store=store)
        driver.cluster, driver.sinks, driver.coordinator_class = self.cluster, self.sinks, self.parts.coordinator
        driver.checkpoint, driver.number = checkpoint, number
        driver.app = 0 if self.config.same_app else number
        driver.process = Process(self.world, f"driver {number}")
        task = self.world.start(driver.process, "query", driver.run, role="driver")
        self.drivers.append((task, driver))
        return task, driver

    def _last_drivers(self) -> None:
        """Nobody disturbs any more: the pipeline gets to its end, or has said loudly why it does not."""
        error: BaseException | None = None
        for _ in range(LAST_STARTS):
            task, driver = self._start_driver(self._true_checkpoint(), self.store)
            self.world.run()
            self._judge_all()
            if driver.finished:
                return
            error = task.error
            if isinstance(error, DataLossError):
                self.stopped = True
                return
        raise Violation("progress", f"the pipeline does not recover: {error!r}")

    def _true_checkpoint(self) -> Checkpoint:
        """The folder that belongs to the log; after copies have run there may be several."""
        newest = self.store.audit.newest
        if newest is None:
            return self.checkpoint
        wanted = (newest.input.start, newest.input.end)
        return next(
            d.checkpoint
            for _, d in self.drivers
            if d.store is self.store and d.checkpoint.offsets.get(newest.epoch) == wanted
        )

    def _check_rest(self) -> None:
        """At the end: everything once, nothing lingers, nobody else was touched."""
        if self.stopped:
            return
        self.audit.check_end(self.store.audit)
        process = Process(self.world, "last look")
        _, driver = self.drivers[-1]
        look = self.world.start(process, "open", driver._new_coordinator().open, role="python")
        self.world.run()
        if look.error is not None:
            raise Violation("progress", f"the last start failed: {look.error!r}")
        self.world.tick += MARKERS_TAKE
        for sink in self.sinks:
            scope = Scope(PIPELINE, sink.name, self.store.audit.log)
            listing = self.world.start(process, "list", lambda s=sink, c=scope: list(s.lingering(c)))  # type: ignore[misc]
            self.world.run()
            listed: list[Committable] = listing.result  # type: ignore[assignment]
            left = [c for c in listed if c.log == scope.log and self._is_open(c)]
            if left:
                raise Violation("sweep", f"lingers after the last start: {left}")

    def _is_open(self, committable: Committable) -> bool:
        """After `kafka-transactions abort` the coordinator alone goes on to call it open: that holds nobody back."""
        known = self.broker.ids.get(committable.transaction)
        return known is None or known.txn is None or known.txn.state != "aborted"

    def _judge_all(self) -> None:
        for task in self.operators:
            if task.error is not None and not isinstance(task.error, (OncewardError, Killed)):
                raise task.error
        for task, driver in self.drivers:
            if task.done and task.error is not None and not getattr(task, "judged", False):
                task.judged = True  # type: ignore[attr-defined]
                self.world.note(f"{driver.process} ENDED WITH {type(task.error).__name__}: {task.error}")
                alone = driver.store is self.store and (not self.crowded or self.world.calm)
                judge(task.error, driver, alone=alone)
                lost = isinstance(task.error, DataLossError)
                self.stopped = self.stopped or (lost and self.config.on_lost == "fail")

    # Disturbances

    def _crash_executors(self, arg: int) -> None:
        """A dying driver takes its executors and Python processes with it, or it does not."""
        task = self.world.current
        assert task is not None
        if task.role == "driver" and arg % 2:
            for other in self.world.running("executor", "python"):
                if other.role == "executor" or other.process.name.startswith(task.process.name):
                    self.world.kill(other.process)

    def _crash_other(self, arg: int) -> None:
        others = self.world.running("driver", "executor", "python")
        if others:
            self.world.kill(others[arg % len(others)].process)

    def _twin(self, checkpoint: Checkpoint) -> None:
        if len(self.world.running("driver")) < MOST_DRIVERS and len(self.drivers) < 2 * STARTS:
            self.crowded = True
            self._start_driver(checkpoint, self.store)

    def _copy(self, arg: int) -> None:
        self._twin(self.checkpoint.older(arg % 3))

    def _impostor(self) -> None:
        """Only once the real pipeline owns its names: who comes first is the real one."""
        known = all(self.audit.visible[sink.name] for sink in self.sinks)
        if known and self.store.audit.decided is not None and len(self.drivers) < 2 * STARTS:
            other = FakeStore(self.world, LogAudit(self.audit), "impostor")
            self._start_driver(Checkpoint("another query"), other)

    def _foreign(self) -> None:
        """Its offsets lag behind: going on there would write records again."""
        decided = self.store.audit.decided
        if decided is not None and len(self.drivers) < 2 * STARTS:
            offsets: dict[int, tuple[int, int]] = dict.fromkeys(range(decided + 1), (0, 0))
            self._start_driver(Checkpoint("another query", offsets, list(offsets)), self.store)
            self.crowded = True

    def _task_fails(self, _arg: int) -> None:
        task = self.world.current
        if task is not None and task.role == "executor":
            raise TaskFailedError("division by zero")

    def _lose_executor(self, arg: int) -> None:
        running = [a for a in self.cluster.attempts if not a.over]
        if running:
            attempt = running[arg % len(running)]
            attempt.given_up = True
            attempt.task.process.wakes = self.world.tick + arg % 300

    def _stale_end(self, arg: int) -> None:
        self.broker.stale_end(arg)
        self.database.stale_end(arg)

    def _rollback(self, arg: int) -> None:
        self.broker.rollback(arg)
        self.database.rollback(arg)

    def _operator(self, arg: int) -> None:
        """`onceward txn commit`, with or without `--skip-lost`, or `txn abort`."""
        if not self.drivers or len(self.operators) >= STARTS:
            return
        self.crowded = True
        policy = self.drivers[-1][1]._policy()
        skip = "so be it" if self.config.on_lost == "skip" else None
        log, place = Log(PIPELINE, self.store), Here(self.sinks)

        def txn() -> None:
            decision = log.view.undone
            found = survey([log], [place])
            if arg % 2 == 0:
                abort_undecided(log, chosen(found, [], orphaned=False), policy=policy)
            elif decision is not None:
                commit_decided(log, decision, found, skip_lost=skip, policy=replace(policy, on_lost=OnLost.FAIL))

        process = Process(self.world, f"operator {len(self.operators)}")
        self.operators.append(self.world.start(process, "txn", txn, role="python"))

    # Who else lives here

    def _sink(self, kind: str) -> Any:
        name = f"{kind}-sink"
        if kind == "kafka":
            return self.parts.kafka(name, self.world, self.audit, self.broker)
        cls = self.parts.prepared if kind == "prepared" else self.parts.staged
        return cls(name, self.world, self.audit, self.database, unique=self.config.unique)

    def _add_strangers(self) -> None:
        """Transactions of pipelines and sinks whose names look like ours: nobody may touch them."""
        for pipeline, suffix in (("orders-eu", ""), ("order", ""), ("orders", "-2")):
            for kind in self.config.sinks:
                # Of the own log it would be what a renamed sink has left behind, and be swept.
                scope = Scope(pipeline, f"{kind}-sink{suffix}", OTHER_LOG if suffix else FIRST_LOG)
                txn = Txn(f"{pipeline}{suffix and '/'}{suffix}", scope.sink, state="prepared")
                self._strangers.append(txn)
                if kind == "kafka":
                    name = str(PooledName(scope, "feedbeef", 0))
                    self.broker.adopt(name, txn)
                else:
                    gid = str(TransactionName(scope, 0, 0, 0, 0, "feedbeef"))
                    where = self.database.prepared if kind == "prepared" else self.database.staged
                    where[gid] = Held(txn, scope)
