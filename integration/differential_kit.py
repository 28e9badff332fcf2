"""Random sequences of a sink's calls, done on the real sink and on the simulated one, for comparison."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from onceward.core.errors import SinkError

from .simulator_kit import simulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.core.contract.transaction import AbortOutcome, CommitOutcome, Committable, WriteContext

Step = tuple[str, int]


PHASES = ("begin", "write", "pre_commit")


@dataclass(frozen=True)
class Script:
    """A sequence of calls.

    Attributes:
        steps: What to call, and on which transaction.
        rows: Rows of each transaction.
    """

    steps: tuple[Step, ...]
    rows: tuple[tuple[int, ...], ...]


def script(
    seed: int, kinds: dict[str, int], *, phases: tuple[str, ...] = PHASES, transactions: int = 6, length: int = 26
) -> Script:
    """Transactions that are begun, written, prepared, committed, aborted, swept… in any order that makes sense.

    Args:
        seed: Of the sequence.
        kinds: How often each call comes; `write` stands for the next phase of a transaction.
        phases: What comes first for each transaction, in this order.
        transactions: How many; every third one writes the same rows as the one before it, as a retry does.
        length: Of the sequence.
    """
    rng = random.Random(seed)
    rows: list[tuple[int, ...]] = []
    for t in range(transactions):
        rows.append(rows[-1] if t % 3 == 2 else tuple(range(10 * t, 10 * t + rng.randint(1, 3))))
    steps: list[Step] = []
    progress = [0] * transactions
    names, weights = list(kinds), list(kinds.values())
    while len(steps) < length:
        t, kind = rng.randrange(transactions), rng.choices(names, weights)[0]
        if kind == "write" and progress[t] < len(phases):
            kind = phases[progress[t]]
            progress[t] += 1
        elif kind == "write" or (kind in ("commit", "abort") and progress[t] < len(phases)):
            continue
        steps.append((kind, t))
    return Script(tuple(steps), tuple(rows))


class Side(Protocol):
    """One of the two worlds."""

    sink: Any

    def batch(self, rows: tuple[int, ...]) -> Any:
        """Rows as the sink takes them."""
        ...

    def wait_for_write(self, transaction: Any) -> None:
        """A sink may write in the background: let it arrive."""
        ...

    def context(self, number: int) -> WriteContext:
        """Context of the n-th transaction."""
        ...

    def outside(self, kind: str, number: int, name: str) -> str:
        """What somebody else does to a transaction."""
        ...

    def visible(self) -> list[int]:
        """What a reader sees."""
        ...


@dataclass
class Player:
    """Plays a script on one side, and notes the class of each answer."""

    side: Side
    script: Script
    answers: list[str] = field(default_factory=list)
    _open: dict[int, Any] = field(default_factory=dict)
    _prepared: dict[int, Committable] = field(default_factory=dict)
    _broken: set[int] = field(default_factory=set)
    _names: dict[str, int] = field(default_factory=dict)

    def play(self) -> list[str]:
        """The class of each answer, and at the end what is visible."""
        for kind, t in self.script.steps:
            call: Callable[[int], str] = getattr(self, f"_{kind}", lambda t, kind=kind: self._outside(kind, t))
            self.answers.append(f"{kind} {t}: {call(t)}")
        self.answers.append(f"visible: {self.side.visible()}")
        for transaction in self._open.values():
            self.side.sink.discard(transaction)
        return self.answers

    def _begin(self, t: int) -> str:
        transaction = self._open[t] = self.side.sink.begin(self.side.context(t))
        self._names[self.name_of(transaction)] = t
        return "ok"

    def _write(self, t: int) -> str:
        """A sink may notice a failure at the next call only, so the answer comes with pre_commit."""
        try:
            self.side.sink.write(self._open[t], self.side.batch(self.script.rows[t]))
            self.side.wait_for_write(self._open[t])
        except SinkError:
            self._broken.add(t)
        return "done"

    def _pre_commit(self, t: int) -> str:
        try:
            if t not in self._broken:
                self._prepared[t] = self.side.sink.pre_commit(self._open[t])
                del self._open[t]
                return "ok"
        except SinkError:
            self._broken.add(t)
        self.side.sink.discard(self._open.pop(t))
        return "refused"

    def _prepare(self, t: int) -> str:
        self._write(t)
        return self._pre_commit(t)

    def _commit(self, t: int) -> str:
        if t not in self._prepared:
            return "nothing prepared"
        outcome: CommitOutcome = self.side.sink.commit_many([self._prepared[t]])[0]
        return outcome.status.value

    def _abort(self, t: int) -> str:
        if t not in self._prepared:
            return "nothing prepared"
        outcome: AbortOutcome = self.side.sink.abort(self._prepared[t])
        return outcome.status.value

    def _sweep(self, t: int) -> str:
        """Abort all that lingers of the transactions up to this one."""
        mine = sorted((self._names[c.transaction], c) for c in self._lingering() if self._names[c.transaction] <= t)
        return str([(number, self.side.sink.abort(committable).status.value) for number, committable in mine])

    def _list(self, _t: int) -> str:
        return str(sorted(self._names[c.transaction] for c in self._lingering()))

    def _outside(self, kind: str, t: int) -> str:
        name = next((name for name, number in self._names.items() if number == t), None)
        return self.side.outside(kind, t, name) if name is not None else "not begun"

    def _lingering(self) -> list[Committable]:
        return list(self.side.sink.lingering(self.side.context(0).scope))

    def name_of(self, transaction: Any) -> str:
        """The name in the target of what `begin` gave."""
        producer = getattr(transaction, "producer", None)
        if producer is not None:
            return str(producer.name)
        return str(transaction[1] if isinstance(transaction, tuple) else transaction.name)


def play_simulated(make: Callable[[Any, Any], Any], played: Script) -> list[str]:
    """Play in a world of the simulator in which nothing else happens.

    Args:
        make: Makes the side out of the world and its audit.
        played: The script.
    """
    plan = simulator.Plan(0, simulator.Config())
    world = simulator.world.World(plan)
    audit = Recorder(world)
    side = make(world, audit)
    player = Player(side, played)
    task = world.start(simulator.world.Process(world, "all"), "script", player.play)
    with side.patches():
        world.run()
    if task.error is not None:
        raise task.error
    return player.answers


class Recorder:
    """An audit that allows everything and remembers what is visible."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.rows: list[int] = []

    def of(self, _txn: Any) -> Recorder:
        return self

    def on_lost(self, _kinds: Any) -> None:
        """Nothing to check."""

    def on_begin(self, txn: Any) -> Any:
        return txn

    def on_prepared(self, _identity: Any, _txn: Any) -> None:
        """Nothing to check."""

    def on_commit(self, txn: Any) -> None:
        txn.state = "committed"

    def on_abort(self, txn: Any, _cause: str) -> None:
        txn.state = "aborted"

    def on_visible(self, _txn: Any, rows: list[int]) -> None:
        self.rows += rows


def compared(real: list[str], simulated: list[str]) -> str:
    """Both lists side by side."""
    pairs = zip(real, simulated, strict=True)
    return "\n".join(f"{'  ' if a == b else '->'} {a:60s} | {b}" for a, b in pairs)
