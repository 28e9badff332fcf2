"""One run: build the world, let it be disturbed, then let a last driver go to the end in peace, and look."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.contract.names import PooledName, Scope, TransactionName
from onceward.core.contract.targets import Target
from onceward.core.errors import DataLossError, EpochConflictError, OncewardError
from onceward.core.operations.log_locations import Log
from onceward.core.operations.resolve import abort_undecided, abortable, commit_decided
from onceward.core.operations.survey import survey

from .audit import KINDS, Audit, LogAudit, Txn, kind_of, target_of
from .broker import MARKERS_TAKE, ONGOING, Broker
from .database import Database, Held
from .database_sinks import PreparedSink, StagedSink
from .harness import inside
from .judge import judge
from .kafka_sink import KafkaLikeSink
from .move import Retirement
from .pipeline import Driver, policy_of
from .plan import Kind, Plan
from .spark import Cluster, FetchFailedError, Folder, TaskFailedError
from .store import FakeStore
from .world import Killed, Process, Task, Violation, World

if TYPE_CHECKING:
    from collections.abc import Sequence

STARTS = 10
"""Restarts of the driver in the disturbed part of a run."""
PAUSE = 25
"""Ticks until the supervisor starts it again."""
CHANGES = (Kind.RENAME, Kind.CHANGE_SINKS)
LARGE = 500
"""Bytes of an entry that only a decision has."""
MOST_DRIVERS = 3
MOST_REWINDS = 2
MOST_MOVES = 2
OTHER_LOG = "99999999"
FIRST_LOG = "00000002"
"""What the first START calls its log. A pipeline made by copying a checkpoint folder has the same one."""
TO_REWIND = "rewind='why'"
CHOICES = {"on_lost='replay'": "replay", TO_REWIND: "", "on_lost='skip'": "skip"}
"""What a message may offer after a loss, and what `on_lost` is then."""
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


def seen_by_an_operator(sinks: Sequence[Any]) -> Target:
    """The targets of the pipeline's sinks."""
    named = {sink.name: sink for sink in sinks}
    return Target(
        title="here",
        names=lambda pipelines: {(pipeline, sink) for pipeline in pipelines for sink in named},
        known=lambda _: named,
        holds=lambda _, sink: sink in named,
        sink=named.__getitem__,
    )


@dataclass(frozen=True)
class Parts:
    """What a mutant may replace."""

    coordinator: type[Coordinator] = Coordinator
    kafka: type[KafkaLikeSink] = KafkaLikeSink
    prepared: type[PreparedSink] = PreparedSink
    staged: type[StagedSink] = StagedSink
    handler: type[EpochHandler] = EpochHandler


def simulate(plan: Plan, *, tracing: bool = False, parts: Parts | None = None) -> Outcome:
    """Run a plan."""
    simulation = Simulation(plan, tracing=tracing, parts=parts or Parts())
    violation = None
    with inside(simulation.world, simulation.audit, simulation.broker, simulation.parts):
        try:
            simulation.run()
        except Violation as broken:
            violation = broken
        finally:
            simulation.world.close()
    return Outcome(plan, violation, simulation.world.tick, simulation.stopped, simulation.world.trace or [])


class Simulation:
    """One run's world, and the pipeline that lives in it; its neighbour, if there is one, meets the same disturbances
    while it runs, and is left alone otherwise.

    Args:
        plan: Of the run.
        tracing: Whether to keep a trace.
        parts: What runs.
        beside: Whose neighbour it is.
    """

    def __init__(self, plan: Plan, *, tracing: bool, parts: Parts, beside: Simulation | None = None) -> None:
        self.config = plan.config
        self.parts = parts
        if beside is None:
            self.world = World(plan, tracing=tracing)
            self.audit = Audit(self.world, self.config.records)
            self.broker = Broker(self.world, self.audit, self.config.timeout)
            self.database = Database(self.world, self.audit)
            self.world.outside |= {"Broker": self.broker, "Database": self.database}
        else:
            self.world, self.broker, self.database = beside.world, beside.broker, beside.database
            self.audit = Audit(self.world, self.config.records, self.config.neighbour, beside.audit)
        self.world.outside[f"Audit {self.audit.pipeline}"] = self.audit
        self.cluster = Cluster(self.world)
        self.store = FakeStore(self.world, LogAudit(self.audit, main=True), "main")
        self.folder = self._add(Folder(self._root(), self.store))
        self.names = [f"{kind}-sink" for kind in self.config.sinks]
        self.rewind: str | None = None
        self.before: tuple[Folder, str | None] | None = None
        """Checkpoint and words of the command line from before a rewind that was not done when it was asked for."""
        self.doubts = False
        """Whether a rewind is dropped if the start that asks for it fails before it is done."""
        self.reasons = 0
        self.changed = False
        """Whether the sinks ever were others, or called otherwise."""
        self.drivers: list[tuple[Task, Driver]] = []
        self.starts = 0
        self.finished = False
        self.stopped = False
        self.crowded = False
        self.operators: list[Task] = []
        self.retirements: list[Retirement] = []
        self.settled: set[str] = set()
        self.neighbours: list[Simulation] = []
        if beside is None:
            self._settle_in(plan)

    def _settle_in(self, plan: Plan) -> None:
        if self.config.neighbour:
            self.neighbours.append(Simulation(plan, tracing=False, parts=self.parts, beside=self))
        self.world.actions = {
            Kind.CRASH: self._crash_executors,
            Kind.CRASH_OTHER: self._crash_other,
            Kind.TWIN: lambda _: self._twin(self.folder),
            Kind.COPY: self._copy,
            Kind.IMPOSTOR: self._impostor,
            Kind.FOREIGN: self._foreign,
            Kind.TASK_FAILS: self._task_fails,
            Kind.LOSE_EXECUTOR: self._lose_executor,
            Kind.EXPIRE: self.broker.expire,
            Kind.STALE_END: self._stale_end,
            Kind.ROLLBACK: self._rollback,
            Kind.OPERATOR: self._operator,
            Kind.LOSE_LEADER: self.broker.lose_leader,
            Kind.DEPOSE: self.broker.depose,
            Kind.RESTART_TARGET: lambda _: self.database.restart(),
            Kind.OUTAGE: self._outage,
            Kind.REFUSE: lambda arg: self.database.refuse(arg % 997),
            Kind.DELETE_TOPIC: self.broker.delete_topic,
            Kind.FULL_STORE: lambda arg: self.store.fill(arg % 199, (0, LARGE)[arg // 199 % 2]),
            Kind.REWIND: self._go_back,
            Kind.THINK_BETTER: lambda _: setattr(self, "doubts", True),
            Kind.OCCUPY: self.database.occupy,
            Kind.RENAME: self._rename,
            Kind.CHANGE_SINKS: self._change_sinks,
            Kind.RESTORE: self._restore,
            Kind.MOVE: lambda _: self._move(),
            Kind.FAIL_OVER: self._fail_over,
            Kind.LOG_GOES_BACK: self._log_goes_back,
        }
        self._add_strangers()

    def run(self) -> None:
        """The whole run."""
        everyone = [self, *self.neighbours]
        for one in everyone:
            process = Process(self.world, f"supervisor of {one.audit.pipeline}")
            self.world.start(process, "main", one._supervise, role="supervisor")
        self.world.run()
        for one in everyone:
            one._judge_all()
        self.world.calm = True
        self.broker.recover()
        self.database.recover()
        self.store.recover()
        while self.world.late:
            self.world.land(0)
        for one in everyone:
            one._last_drivers()
        for one in everyone:
            one._check_rest()

    # The supervisor restarts the driver whenever it has died, a few times

    def _supervise(self) -> None:
        driver: Driver | None = None
        while not self.finished and not self.stopped and self.starts < STARTS:
            self.starts += 1
            task, driver = self._start_driver(self.folder, again=driver)
            driver.supervised = True
            self.world.wait(lambda task=task: task.done or not task.process.alive)  # type: ignore[misc]
            self.finished = driver.finished
            self._judge_all()
            if not self.finished:
                self._think_better()
                self.world.nap(PAUSE)

    def _start_driver(
        self,
        folder: Folder,
        *,
        rewind: bool = True,
        again: Driver | None = None,
        names: Sequence[str] = (),
    ) -> tuple[Task, Driver]:
        """As the command line says, which a supervisor repeats; or, if it says the same, in the process of `again`."""
        driver = Driver(
            self.world,
            self.audit,
            folder,
            names or self.names,
            self._make,
            rewind=self.rewind if rewind else None,
            number=len(self.drivers),
            cluster=self.cluster,
            handler_class=self.parts.handler,
        )
        driver.config = self.config
        said = (folder, driver.rewind)
        same = again is not None and said == (again.folder, again.rewind) and not self.changed
        if again is not None and same and again.process.alive and self.config.same_process:
            driver.go_on_in(again)
        task = self.world.start(driver.process, "query", driver.run, role="driver")
        self.drivers.append((task, driver))
        return task, driver

    def _last_drivers(self) -> None:
        """Nobody disturbs any more: the pipeline gets to its end, or has said loudly why it does not."""
        error: BaseException | None = None
        for _ in range(LAST_STARTS):
            task, driver = self._start_driver(self._true_folder())
            self.world.run()
            self._judge_all()
            if driver.finished:
                return
            error = task.error
            if isinstance(error, DataLossError) and not error.retryable:
                self.stopped = True
                self._check_choices(error)
                return
        raise Violation("progress", f"the pipeline does not recover: {error!r}")

    def _check_choices(self, loss: DataLossError) -> None:
        """A start that stops with a loss names a choice with which the next one completes."""
        named = [choice for choice in CHOICES if choice in loss.message]
        first = self.world.plan.seed % len(named) if named else 0
        if not any(self._completes_with(choice) for choice in (*named[first:], *named[:first])):
            raise Violation("progress", f"none of {named} leads on after: {loss!r}")

    def _completes_with(self, choice: str) -> bool:
        if choice == TO_REWIND:
            # Rows would be in the way until a person has deleted them; a standby is taken as it is, see _fail_over.
            if self.config.unique or self.database.promoted:
                return False
            self._give_reason()
            self.folder = self._add(self.folder.older(len(self.folder.offsets), self._root()))
        else:
            self.config = replace(self.config, on_lost=CHOICES[choice])
            self.audit.says = self.config.on_lost
        for _ in range(LAST_STARTS):
            task, driver = self._start_driver(self._true_folder())
            self.world.run()
            self._judge_all()
            if driver.finished:
                return True
            if isinstance(task.error, DataLossError) and not task.error.retryable:
                return False
        return False

    def _true_folder(self) -> Folder:
        """The folder that belongs to the log; after copies have run there may be several."""
        log = self.store.audit
        to_come = self.rewind is not None and (self.folder.query, self.rewind) not in log.rewinds
        return self.folder if log.folder is None or to_come else log.folder

    def _check_rest(self) -> None:
        """At the end: everything once, nothing lingers, nobody else was touched."""
        if self.stopped:
            return
        look = self._last_look()
        for _ in range(LAST_STARTS - 1):
            again = isinstance(look.error, OncewardError) and look.error.retryable
            if look.error is None or not (again or self._is_told_what_to_do(look.error)):
                break
            look = self._last_look()
        if isinstance(look.error, DataLossError) and self.database.promoted:  # since the newest epoch
            self.stopped = True
            return
        self.audit.check_end(self.store.audit)
        if look.error is not None:
            raise Violation("progress", f"the last start failed: {look.error!r}")
        self.world.tick += MARKERS_TAKE
        held = [held.txn for where in (self.database.prepared, self.database.staged) for held in where.values()]
        held += [known.txn for known in self.broker.ids.values() if known.txn is not None and known.state == ONGOING]
        # After `kafka-transactions abort` the coordinator alone goes on to call it open: that holds nobody back.
        log = self.store.audit
        here = {kind_of(name) for name in self.names}
        mine = [txn for txn in held if txn.log == log.log and target_of(txn) in here]
        left = [txn for txn in mine if txn.state != "aborted" and txn.writer <= log.tail]
        if left:
            raise Violation("sweep", f"lingers after the last start: {left}")

    def _last_look(self) -> Task:
        process = Process(self.world, "last look")
        last = self.parts.coordinator(self.audit.pipeline, self.store, self._make(self.names), policy_of(self.world)())
        look = self.world.start(process, "open", last.open, role="python")
        self.world.run()
        return look

    def _judge_all(self) -> None:
        for task in self.operators:
            if task.error is not None and not isinstance(task.error, (OncewardError, Killed)):
                raise task.error
        for task, driver in self.drivers:
            if task.done and task.error is not None and not getattr(task, "judged", False):
                task.judged = True  # type: ignore[attr-defined]
                self.world.note(f"{driver.process} ENDED WITH {type(task.error).__name__}: {task.error}")
                alone = driver.store is self.store and (not self.crowded or self.world.calm)
                if self._is_told_what_to_do(task.error):
                    self.world.excuses += 1  # a person needs time
                    continue
                judge(task.error, driver, alone=alone)
                lost = isinstance(task.error, DataLossError) and not task.error.retryable and self.audit.lost
                self.stopped = self.stopped or bool(lost and self.config.on_lost == "fail")

    def _is_told_what_to_do(self, error: BaseException) -> bool:
        """A person does what the message says."""
        message = error.message if isinstance(error, EpochConflictError) else ""
        newest = self.store.audit.newest or self.store.audit.taken_back
        if "no longer has" in message and self._think_better():
            return True
        if newest is not None and ("no longer has" in message or "with the sinks as they were" in message):
            self.names = list(newest.sinks)
            return True
        if "give another reason" in message and self.rewind is not None:
            self._give_reason()
            return True
        if "has ended here" in message:
            self._settle(next(one for one in self.retirements if f" {one.restored.root}. " in message))
            return True
        return False

    def _give_reason(self) -> None:
        self.reasons += 1
        self.rewind = f"reason {self.reasons}"

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

    def _twin(self, folder: Folder, *, rewind: bool = True) -> None:
        if len(self.world.running("driver")) < MOST_DRIVERS and len(self.drivers) < 2 * STARTS:
            self.crowded = True
            self._start_driver(folder, rewind=rewind)

    def _copy(self, arg: int) -> None:
        """The words of a rewind that was done may stand in its command line: they are no permission."""
        older = self.folder.older(arg % 5, self._root())
        self._twin(self._add(older), rewind=bool(arg & 16) and self._is_done())

    def _is_done(self) -> bool:
        """Whether the rewind of the command line is in the log."""
        return self.rewind is not None and any(why == self.rewind for _, why in self.store.audit.rewinds)

    def _impostor(self, arg: int) -> None:
        """Only once the real pipeline owns its names: who comes first is the real one. Its sinks may be called else."""
        known = all(self.audit.visible[kind] for kind in self.config.sinks) and not self.changed
        if known and self.store.audit.decided is not None and len(self.drivers) < 2 * STARTS:
            other = FakeStore(self.world, LogAudit(self.audit), "impostor")
            names = [f"{kind}-new" for kind in self.config.sinks] if arg % 2 else ()
            self._start_driver(self._add(Folder(self._root(), other, "another query")), rewind=False, names=names)

    def _foreign(self, arg: int) -> None:
        """Its offsets lag behind: going on there would write records again. Some say that it is this query, but
        not where there are rewinds: the epoch and the query are all that a log knows then of what is to come."""
        decided, rewound = self.store.audit.decided, any(e.kind is Kind.REWIND for e in self.world.plan.events)
        if decided is not None and len(self.drivers) < 2 * STARTS:
            folder = self._add(Folder(self._root(), self.store, "another query" if arg % 2 or rewound else "query"))
            for epoch in range(decided + 1):
                folder.write_offsets(epoch, 0, self.world.tick)
            folder.commits = list(folder.offsets)
            self._start_driver(folder, rewind=False)
            self.crowded = True

    def _outage(self, arg: int) -> None:
        target = self.database if arg % 4 else self.broker
        target.go_away(arg % 1999)

    def _go_back(self, arg: int) -> None:
        """Who runs is stopped before, or fenced; where a table has a unique key its rows would be in the way.

        Nobody asks for another one before the last one is done: right after REWIND, a log knows only the query and the
        number of the epoch that comes next, and these two checkpoints may differ in what is before it.
        """
        if self.rewind is not None and not self._is_done():
            return
        if self.config.unique or not self.folder.commits or self.reasons >= MOST_REWINDS or self.starts >= STARTS:
            return
        self.before = self.folder, self.rewind
        self._give_reason()
        self.folder = self._add(self.folder.older(1 + arg % 2, self._root()))
        if arg & 8:
            self._twin(self.folder)
        else:
            for task in self.world.running("driver", "python"):
                self.world.kill(task.process)

    def _think_better(self) -> bool:
        """After a start that failed, take the words back: what the log does not know cannot have changed anything."""
        if not self.doubts or self.before is None or self._is_done() or self.drivers[-1][1].rewind != self.rewind:
            return False
        self.folder, self.rewind = self.before
        self.before, self.doubts = None, False
        for task in self.world.running("driver", "python"):
            self.world.kill(task.process)
        return True

    def _rename(self, _arg: int) -> None:
        """The next start says so."""
        suffix = "sink" if self.names[0].endswith("-renamed") else "renamed"
        self.names, self.changed = [f"{kind_of(name)}-{suffix}" for name in self.names], True

    def _change_sinks(self, arg: int) -> None:
        """One more of another kind, one fewer, or another one in its place; a format has one sink."""
        here = [kind_of(name) for name in self.names]
        others = [kind for kind in KINDS if kind not in here]
        other, left = others[arg % len(others)], here[arg % len(here)]
        match arg // 16 % 3 if self.config.style == "batch" else 2:
            case 0 if len(here) == 1:
                here = [*here, other]
            case 1 if len(here) > 1:
                here.remove(left)
            case _:
                here[here.index(left)] = other
        suffix = self.names[0].partition("-")[2]
        self.names, self.changed = [f"{kind}-{suffix}" for kind in here], True

    def _restore(self, arg: int) -> None:
        """Only where a target has seen what came after the backup, and no rewind makes it forget: nobody else knows."""
        backups, kinds = self.store.backups, {event.kind for event in self.world.plan.events}
        if not backups or Kind.REWIND in kinds or len(self.drivers) >= 2 * STARTS:
            return
        backup = backups[arg % len(backups)]
        names = [name for name in self.names if not name.startswith("kafka")]
        scopes = [Scope(self.audit.pipeline, name, self.store.audit.log) for name in names]
        if any(self.database.progress(scope) > backup.progress for scope in scopes):
            folder = backup.folder.older(0, self._root(), self.store.restored(backup))
            self._start_driver(self._add(folder), rewind=False)

    def _fail_over(self, arg: int) -> None:
        """Fail the database over, unless its state is accepted on purpose, or only its data can unmask an older log."""
        kinds = {event.kind for event in self.world.plan.events}
        accepted = self.config.on_lost == "skip" and self.database.promoted
        if not accepted and not kinds & {Kind.REWIND, Kind.RESTORE, Kind.IMPOSTOR, *CHANGES}:
            self.database.fail_over(arg)

    def _log_goes_back(self, arg: int) -> None:
        """Only where a target has seen what the standby lacks, and still knows it: nobody else could tell."""
        kinds = {event.kind for event in self.world.plan.events}
        if kinds & {Kind.FAIL_OVER, Kind.REWIND, Kind.MOVE, *CHANGES}:
            return
        names = [name for name in self.names if not name.startswith("kafka")]
        scopes = [Scope(self.audit.pipeline, name, self.store.audit.log) for name in names]
        self.crowded = True
        self.store.go_back(
            1 + arg % 5,
            arg // 5 % 499,
            lambda reached: any(self.database.progress(scope) > reached for scope in scopes),
        )

    def _task_fails(self, arg: int) -> None:
        task = self.world.current
        if task is not None and task.role == "executor":
            raise FetchFailedError("shuffle files are gone") if arg % 2 else TaskFailedError("division by zero")

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
        policy = policy_of(self.world)(on_lost=OnLost(self.config.on_lost))
        skip = "so be it" if self.config.on_lost == "skip" else None
        log, target = Log(self.audit.pipeline, self.store), seen_by_an_operator(self._make(self.names))

        def txn() -> None:
            decision = log.view.undone
            found = survey([log], [target]).transactions
            if arg % 2 == 0:
                abort_undecided(log, abortable(found), policy=policy)
            elif decision is not None:
                commit_decided(log, decision, found, skip_lost=skip, policy=replace(policy, on_lost=OnLost.FAIL))

        process = Process(self.world, f"operator {len(self.operators)}")
        process.operated = self.store
        self.operators.append(self.world.start(process, "txn", txn, role="python"))

    def _move(self) -> None:
        """`onceward savepoint create --retire` and restore."""
        if not self.folder.commits or len(self.retirements) >= MOST_MOVES:
            return
        self.crowded = True
        moving = Retirement(self.world, self.folder, self._root())
        self._add(moving.restored)
        self.retirements.append(moving)

        def savepoint() -> None:
            moving.create()
            self._settle(moving)

        process = Process(self.world, f"mover {len(self.retirements)}")
        self.operators.append(self.world.start(process, "savepoint", savepoint, role="python"))

    def _settle(self, moved: Retirement) -> None:
        """The pipeline is started at the new place from now on; whoever finds that the log has ended does the same."""
        if moved.restored.root not in self.settled:
            self.settled.add(moved.restored.root)
            self.store = moved.restored.store = self.store.moved(moved.entries)
            self.folder = self.store.audit.folder = self._add(moved.restored)

    # Who else lives here

    def _root(self) -> str:
        return f"/c/{len(self.world.folders)}"

    def _add(self, folder: Folder) -> Folder:
        self.world.folders[folder.root] = folder
        return folder

    def _make(self, names: Sequence[str]) -> list[Any]:
        return [self._sink(name) for name in names]

    def _sink(self, name: str) -> Any:
        kind = kind_of(name)
        if kind == "kafka":
            return self.parts.kafka(name, self.world, self.audit, self.broker)
        cls = self.parts.prepared if kind == "prepared" else self.parts.staged
        return cls(name, self.world, self.audit, self.database, unique=self.config.unique)

    def _add_strangers(self) -> None:
        """Transactions of pipelines and sinks whose names look like ours: nobody may touch them."""
        for pipeline, suffix in (("orders-eu", ""), ("order", ""), ("orders", "-2")):
            for kind in self.config.sinks:
                if kind == "kafka" and suffix:
                    continue  # once its timeout has ended it, Kafka cannot tell that it was never committed: refused
                # Of the own log it would be what a renamed sink has left behind, and be swept.
                scope = Scope(pipeline, f"{kind}-sink{suffix}", OTHER_LOG if suffix else FIRST_LOG)
                txn = Txn(f"{pipeline}{suffix and '/'}{suffix}", scope.sink, state="prepared")
                if kind == "kafka":
                    name = str(PooledName(scope, "feedbeef", 0))
                    self.broker.adopt(name, txn)
                else:
                    gid = str(TransactionName(scope, 0, 0, 0, 0, "feedbeef"))
                    where = self.database.prepared if kind == "prepared" else self.database.staged
                    where[gid] = Held(txn, scope)
