"""Changes of a table, and of rights on it, between any two steps of an epoch; judged by the rows that the table has.

Whatever happens, one of these must be true of each epoch: its rows are in the table, each once and unchanged; or it was
refused before its decision with words that name the cause; or, only where the change came after the rows were
prepared, its merge is refused with such words and nothing is in the table, and it goes on once the change is undone.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.tables import forget_description
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus, Committable, WriteContext
from onceward.core.errors import OncewardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.connectors.database.sink import DatabaseSink

MOMENTS = ("validated", "described", "written", "prepared")
SCOPE = Scope("orders", "t", "0123abcd")
_PATIENCE = 5.0
"""Seconds."""


@dataclass(frozen=True)
class Change:
    """A change of the table `t`, or of a right on it.

    Attributes:
        name: For messages.
        do: Statements.
        undo: Statements after which epochs are written again.
        cause: Pattern of the words that name it; empty if it must do no harm.
        ways: The ways to commit that it is for.
        late: Whether only the merge, or the commit, can find it.
    """

    name: str
    do: tuple[str, ...]
    undo: tuple[str, ...]
    cause: str
    ways: tuple[str, ...] = ("staging", "upsert", "prepared")
    late: bool = False


@dataclass(frozen=True)
class Column:
    """A type of the column `x`, the Arrow type of its data, and values that it keeps.

    Without values, it is only one that others are changed to.
    """

    declared: str
    arrow: pa.DataType
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One run."""

    way: str
    column: Column
    change: Change
    moment: str


class Server(Protocol):
    """A database, and what the runs need of it."""

    @property
    def ways(self) -> Sequence[str]: ...

    @property
    def changes(self) -> Sequence[Change]: ...

    @property
    def columns(self) -> Sequence[Column]: ...

    @property
    def retyped(self) -> str:
        """Statement that changes the type of `x`, with {} for the type."""
        ...

    @property
    def driver_error(self) -> type[Exception]: ...

    def make_table(self, declared: str) -> None:
        """Create t (id, v, x) anew, with a unique key over id, and all rights on it."""

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as an administrator, who waits for no lock for long."""
        ...

    def sink(self, way: str) -> DatabaseSink:
        """Return a new sink into t."""
        ...


@dataclass
class Seen:
    """Outcomes of runs, by their numbers: a generator that never reaches one proves nothing of it."""

    outcomes: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def cases(server: Server, part: int, parts: int, seed: int = 0) -> Iterator[Case]:
    """Yield one of several parts of all changes with every way and moment, and of a third of those of types."""
    retyped = [
        (old, Change(f"x to {new.declared}", (_retype(server, new),), (_retype(server, old),), r"'x'|\bx\b|type|valu"))
        for old in server.columns
        if old.values
        for new in server.columns
        if new.declared != old.declared
    ]
    draw = random.Random(seed)
    every = _combined(server, [(server.columns[0], change) for change in server.changes])
    of_types = _combined(server, retyped)
    every += draw.sample(of_types, len(of_types) // 3)
    draw.shuffle(every)
    yield from every[part::parts]


def _combined(server: Server, changes: Sequence[tuple[Column, Change]]) -> list[Case]:
    return [
        Case(way, column, change, moment)
        for column, change in changes
        for way in server.ways
        if way in change.ways
        for moment in MOMENTS
    ]


def _retype(server: Server, column: Column) -> str:
    return server.retyped.format(column.declared)


def play(server: Server, case: Case, seen: Seen) -> None:
    """Run an epoch before the change, and one around it; check the rows after each step."""
    server.make_table(case.column.declared)
    sink = server.sink(case.way)
    forget_description(sink.target)
    batch = _rows(case, 0)
    sink.validate(batch.schema)
    _commit(sink, _write(sink, 1, [batch]))
    assert_same(case, server, batch)
    server.run("DELETE FROM t")
    run = _Run(case, server, sink, _rows(case, 100), seen)
    committable = run.prepare()
    if committable is not None and run.finish(committable):
        return
    if run.changed:
        _undo(server, case)
    assert _read(server) == [], f"{case}: {_read(server)}"
    sink.validate(run.batch.schema)
    if committable is None:
        assert list(sink.lingering(SCOPE)) == [], case
        committable = _write(sink, 2, [run.batch])
    _commit(sink, committable)
    assert_same(case, server, run.batch)


@dataclass
class _Run:
    """The epoch around the change."""

    case: Case
    server: Server
    sink: DatabaseSink
    batch: pa.RecordBatch
    seen: Seen
    changed: bool = False

    def prepare(self) -> Committable | None:
        """Write the rows, and return the committable; None if they were refused."""
        transaction = None
        try:
            self._reach("validated")
            transaction = self.sink.begin(_context(2))
            self.sink.write(transaction, self.batch.slice(0, 1))
            self._reach("described")
            self.sink.write(transaction, self.batch.slice(1))
            self._reach("written")
            committable = self.sink.pre_commit(transaction)
        except OncewardError as error:
            if transaction is not None:
                self.sink.discard(transaction)
            refused = error
        else:
            self._reach("prepared")
            self.seen.count("decided" if self.changed else "the change waits")
            return committable
        self._check_words(refused)
        self.seen.count("refused before the decision")
        return None

    def finish(self, committable: Committable) -> bool:
        """Commit what was decided, and return whether it is in the table."""
        try:
            _commit(self.sink, committable)
        except OncewardError as error:
            refused = error
        else:
            self.seen.count("committed")
            assert_same(self.case, self.server, self.batch)
            if self.changed:
                with suppress(self.server.driver_error):  # a value of another type need not fit back into the first one
                    _undo(self.server, self.case)
            return True
        self._check_words(refused)
        late = self.case.moment == "prepared" or self.case.change.late
        assert late, f"{self.case}: decided, and refused at the merge only: {refused}"
        self.seen.count("refused at the merge")
        return False

    def _reach(self, moment: str) -> None:
        if self.case.moment == moment:
            self.changed = _try(self.server, self.case.change.do)

    def _check_words(self, error: OncewardError) -> None:
        assert self.changed, f"{self.case}: {error!r}"
        cause = self.case.change.cause
        assert cause, f"{self.case}: the change does no harm, and there was {error!r}"
        assert re.search(cause, str(error)), f"{self.case}: no word of the cause in {error}"


def _undo(server: Server, case: Case) -> None:
    close_idle()
    for statement in case.change.undo:
        server.run(statement)


def _try(server: Server, statements: Sequence[str]) -> bool:
    """Make a change, unless something that holds the table keeps it out."""
    for number, statement in enumerate(statements):
        try:
            server.run(statement)
        except server.driver_error as error:
            if number == 0 and re.search("(?i)lock", str(error)):
                return False
            raise
    return True


def _context(epoch: int) -> WriteContext:
    return WriteContext(pipeline="orders", sink="t", log="0123abcd", generation=3, attempt=0, epoch=epoch, subtask=0)


def _write(sink: DatabaseSink, epoch: int, batches: Sequence[pa.RecordBatch]) -> Committable:
    transaction = sink.begin(_context(epoch))
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def _commit(sink: DatabaseSink, committable: Committable) -> None:
    until = time.monotonic() + _PATIENCE
    while (outcome := sink.commit(committable)).status is CommitStatus.RETRY_LATER:
        assert time.monotonic() < until, outcome
        time.sleep(0.01)
    assert outcome.status in {CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED}, outcome


def _rows(case: Case, first: int) -> pa.RecordBatch:
    values = case.column.values
    ids = pa.array(range(first, first + len(values)), pa.int32())
    return pa.record_batch({"id": ids, "v": ids, "x": pa.array(values, case.column.arrow)})


def _read(server: Server) -> list[tuple[Any, ...]]:
    return server.run("SELECT id, v, x FROM t ORDER BY id")


def assert_same(case: Case, server: Server, batch: pa.RecordBatch) -> None:
    """Check that the table has exactly these rows."""
    wanted = [tuple(row.values()) for row in batch.to_pylist()]
    rows = _read(server)
    same = len(rows) == len(wanted) and all(
        a[:2] == b[:2] and _is_same(a[2], b[2]) for a, b in zip(rows, wanted, strict=True)
    )
    assert same, f"{case}: the table has {rows}, and {wanted} were written"


def _is_same(read: Any, written: Any) -> bool:
    if read == written or str(read) == str(written):
        return True
    if isinstance(written, bool) or isinstance(read, bool):
        return False
    try:
        return Decimal(str(read)) == Decimal(str(written))
    except InvalidOperation:
        return False
