"""What a run is made of: a configuration and a list of disturbances, both drawn from one seed.

A disturbance happens at a tick, that is at the n-th point where the code meets the outside world. Taking one away
leaves a run that is as valid, so that a failing run can be shrunk by leaving disturbances out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What can happen at a tick."""

    SWITCH = "switch"
    """Another process runs on."""
    NAP = "nap"
    """The running process stops for a long time; everybody else goes on."""
    CRASH = "crash"
    """The running process dies."""
    CRASH_OTHER = "crash other"
    """Some other process dies."""
    STORE_FAULT = "store fault"
    """The running process's next call to the log's store fails in one of several ways."""
    TARGET_FAULT = "target fault"
    """The running process's next call to a target fails in one of several ways."""
    LAND = "land"
    """A late put or request arrives now."""
    TWIN = "twin"
    """A second driver of the same query starts while the first lives."""
    COPY = "copy"
    """A driver starts on an older copy of the checkpoint, sometimes with the command line's rewind."""
    IMPOSTOR = "impostor"
    """A driver starts with a fresh checkpoint, and a fresh log, under the old name."""
    FOREIGN = "foreign"
    """A driver starts with the checkpoint of another query, which happens to stand at the next epoch."""
    TASK_FAILS = "task fails"
    """The running executor task raises; a driver is not disturbed."""
    LOSE_EXECUTOR = "lose executor"
    """A driver takes a running task for dead; the task sleeps and wakes up as a zombie."""
    EXPIRE = "expire"
    """The broker's timeout aborts an open transaction."""
    STALE_END = "stale end"
    """Somebody repeats a commit or an abort of a transaction that ended long ago."""
    ROLLBACK = "rollback"
    """Somebody aborts a transaction by hand, behind the pipeline's back."""
    OPERATOR = "operator"
    """An operator commits what is decided, or aborts what is not, by `onceward txn`, whoever is at work."""
    LOSE_LEADER = "lose leader"
    """A partition of the broker has no leader for a while."""
    RESTART_TARGET = "restart target"
    """A target restarts: sessions die, what is prepared stays."""
    OUTAGE = "outage"
    """A target is away, often for longer than the other one's transaction timeout."""
    REFUSE = "refuse"
    """The database refuses to merge for a while, as for a row that breaks a constraint."""
    DEPOSE = "depose"
    """The coordinator of all transactions is another broker from now on, and the old one does not know it yet."""
    DELETE_TOPIC = "delete topic"
    """A topic is deleted, for good or to be created again at once."""
    FULL_STORE = "full store"
    """The store takes nothing for a while, or no large entries."""
    REWIND = "rewind"
    """A person goes back to an older checkpoint on purpose; the command line says so from now on."""
    THINK_BETTER = "think better"
    """A person drops a rewind if the start that asks for it fails before it has taken place, and starts as before."""
    OCCUPY = "occupy"
    """Somebody else's session is at work on a prepared transaction, which is busy for a while."""
    RENAME = "rename"
    """A person renames the sinks; the next start says so."""
    CHANGE_SINKS = "change sinks"
    """A person adds a sink, takes one out, or puts another one in its place; the next start says so."""
    RESTORE = "restore"
    """A driver starts on a checkpoint folder that came back from a backup together with its log."""
    MOVE = "move"
    """A savepoint ends the log, and the pipeline goes on where it is restored."""
    FAIL_OVER = "fail over"
    """The database dies, and a standby takes its place that lags behind by some commits."""
    LOG_GOES_BACK = "log goes back"
    """A standby that lacks the newest entries takes the place of the log's server, until a person brings that back."""


NO_EXCUSE = frozenset(
    {
        Kind.SWITCH,
        Kind.TASK_FAILS,
        Kind.TARGET_FAULT,
        Kind.LOSE_LEADER,
        Kind.DEPOSE,
        Kind.OUTAGE,
        Kind.REFUSE,
        Kind.DELETE_TOPIC,
        Kind.FAIL_OVER,
        Kind.OCCUPY,
    }
)
"""For a decided transaction that its timeout ends. Where these are a fault of its own target, that one says so."""


NEIGHBOURS = ("orders-us", "Orders", "orders-orders")


class Event(NamedTuple):
    """One disturbance: when, what, and a number that its meaning depends on."""

    tick: int
    kind: Kind
    arg: int


_WEIGHTS: dict[Kind, int] = {
    Kind.SWITCH: 24,
    Kind.NAP: 14,
    Kind.CRASH: 14,
    Kind.CRASH_OTHER: 5,
    Kind.STORE_FAULT: 14,
    Kind.TARGET_FAULT: 10,
    Kind.LAND: 4,
    Kind.TWIN: 7,
    Kind.COPY: 2,
    Kind.IMPOSTOR: 2,
    Kind.FOREIGN: 1,
    Kind.TASK_FAILS: 6,
    Kind.LOSE_EXECUTOR: 6,
    Kind.EXPIRE: 1,
    Kind.STALE_END: 3,
    Kind.ROLLBACK: 1,
    Kind.OPERATOR: 3,
    Kind.LOSE_LEADER: 3,
    Kind.RESTART_TARGET: 2,
    Kind.OUTAGE: 5,
    Kind.REFUSE: 2,
    Kind.DELETE_TOPIC: 1,
    Kind.FULL_STORE: 2,
    Kind.REWIND: 3,
    Kind.THINK_BETTER: 2,
    Kind.OCCUPY: 2,
    Kind.RENAME: 2,
    Kind.CHANGE_SINKS: 2,
    Kind.RESTORE: 2,
    Kind.MOVE: 2,
    Kind.FAIL_OVER: 2,
    Kind.DEPOSE: 2,
    Kind.LOG_GOES_BACK: 2,
}


@dataclass(frozen=True)
class Config:
    """What runs, apart from disturbances.

    Attributes:
        style: "batch": one START per run, many epochs, commit in the driver (foreachBatch). "format": one sink, one
            START per epoch, commit in another process by token, abort in a third (Spark's Python data source).
        sinks: Kinds of the sinks: "kafka", "prepared", "staged".
        subtasks: Subtasks per epoch.
        records: Length of the input.
        steps: How many records an epoch takes, in turns.
        speculate: Numbers of the epochs whose tasks all run twice.
        on_lost: Policy: "fail", "replay" or "skip".
        unique: Whether the prepared sink's table has a unique key, so that a retry meets the lost attempt's locks.
        same_app: Whether a restarted driver finds the executors of the one before it.
        same_process: Whether a query that failed runs again in the process that is there.
        adopt: Whether the command line says so, and goes on to.
        tries: Repetitions of a put before a writer gives up.
        timeout: Ticks after which the broker aborts an open transaction.
        refers: Whether staged rows refer to prepared ones, by a foreign key.
        stepwise: Whether the commit of staged rows takes several steps, as of a folder of files or a write-ahead log.
        vague: Whether the database cannot tell, after a rewind, how what it no longer holds from before it has ended.
        neighbour: Name of another pipeline that writes to the same targets at the same time; empty: none.
    """

    style: str = "batch"
    sinks: tuple[str, ...] = ("kafka",)
    subtasks: int = 1
    records: int = 4
    steps: tuple[int, ...] = (1,)
    speculate: tuple[int, ...] = ()
    on_lost: str = "fail"
    unique: bool = False
    same_app: bool = True
    same_process: bool = False
    adopt: bool = False
    tries: int = 2
    timeout: int = 600
    refers: bool = False
    stepwise: bool = False
    vague: bool = False
    neighbour: str = ""


@dataclass(frozen=True)
class Plan:
    """One run, complete: the same plan always gives the same run."""

    seed: int
    config: Config
    events: tuple[Event, ...] = field(default=())

    def without(self, places: set[int]) -> Plan:
        """The plan without some of its events."""
        return replace(self, events=tuple(e for i, e in enumerate(self.events) if i not in places))


def make(seed: int) -> Plan:
    """Draw a plan. Seeds give very different runs: few or many disturbances, of few or many kinds."""
    rng = random.Random(seed)
    config = replace(_config(rng), refers=seed % 2 == 1, vague=seed % 3 == 0, stepwise=seed % 5 < 2)
    kinds = list(_WEIGHTS)
    if rng.random() < 0.5:  # a run that does one sort of thing often finds other bugs than one that does all
        kinds = rng.sample(kinds, rng.randint(3, 6))
    weights = [_WEIGHTS[kind] for kind in kinds]
    count = rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20))
    horizon = rng.choice((80, 150, 250, 500))
    events = sorted(
        Event(rng.randint(1, horizon), rng.choices(kinds, weights)[0], rng.getrandbits(16)) for _ in range(count)
    )
    return Plan(seed, config, tuple(events))


def _config(rng: random.Random) -> Config:
    kinds = ("kafka", "prepared", "staged")
    style = rng.choice(("batch", "batch", "format"))
    alone = style == "format" or rng.random() < 0.5
    sinks = (rng.choice(kinds),) if alone else tuple(rng.sample(kinds, 2))
    return Config(
        style=style,
        sinks=sinks,
        subtasks=rng.choice((1, 1, 2)),
        records=rng.randint(2, 4),
        steps=(rng.choice((0, 1, 1, 1, 2, 2)), rng.choice((0, 1, 1, 1, 2, 2)), rng.choice((0, 1, 1, 1, 2, 2)), 1),
        speculate=tuple(epoch for epoch in range(6) if rng.random() < 0.15),
        on_lost=rng.choice(("fail", "fail", "replay", "replay", "skip")),
        unique=rng.random() < 0.5,
        same_app=rng.random() < 0.7,
        same_process=rng.random() < 0.4,
        adopt=rng.random() < 0.3,
        tries=rng.choice((0, 1, 2)),
        timeout=rng.choice((400, 600, 1200)),
        neighbour=rng.choice(("", "", "", *NEIGHBOURS)),
    )
