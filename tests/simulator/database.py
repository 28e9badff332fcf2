"""A database as nasty as PostgreSQL with prepared transactions.

What is nasty, all of it measured on the real one and compared again by integration/test_differential_postgres.py:

- COMMIT PREPARED takes whatever the name holds: a stale one commits the newer transaction of a name used twice.
- While one session ends a prepared transaction, another one is told "busy", which says nothing about the outcome.
  Somebody may be at work on it for as long as he likes.
- Once a rewind has set ledger rows aside, an absent row is a proof only of what came after these (the real ledger's own
  judgment, LedgerFacts).
- "Does not exist" is said after a commit and after a rollback alike: only the ledger row knows.
- Prepared rows keep their locks for ever: a retry that writes the same key fails by lock_timeout.
- A restart ends open sessions; what is prepared or staged stays.
- It may be away for longer than another target's transactions live, and refuse to merge rows for as long.
- A standby that takes its place has all that was done up to some moment, and nothing that was done since.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from onceward.connectors.database.ledger_tables import LedgerFacts
from onceward.core.contract.names import NOTHING, Progress, parse_transaction_name
from onceward.core.errors import PostgresError

from .audit import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.core.contract.names import Scope
    from onceward.core.contract.transaction import Committable

    from .audit import Audit, Txn
    from .world import Process, World

DONE, BUSY, MISSING = "done", "55000", "42704"
LONGEST_LAG = 8
"""Commits and preparations that a standby may lack."""
LOCK_TIMEOUT = 3
"""Turns that a statement waits for somebody else's lock."""


class NoAnswerError(Exception):
    """The connection broke; the statement may have been carried out, or will be."""


@dataclass(eq=False)
class Session:
    """A connection with an open transaction."""

    process: Process
    txn: Txn
    broken: bool = False


@dataclass(eq=False)
class Held:
    """A prepared transaction, or staged rows."""

    txn: Txn
    scope: tuple[str, str, str]
    busy: bool = False
    busy_until: int = -1
    """Tick until which somebody else is at work on it."""


def _before_a_rewind(scope: Scope) -> Scope:
    """Whose ledger rows are, once a rewind has set them aside."""
    return scope._replace(log=f"{scope.log} before a rewind")


def keys_of(txn: Txn) -> str:
    """Which keys of which table: no two pipelines write the same ones."""
    return f"{target_of(txn)} {txn.pipeline}"


class Past(NamedTuple):
    """All that the database had at some moment."""

    prepared: dict[str, tuple[Txn, tuple[str, str, str]]]
    staged: dict[str, tuple[Txn, tuple[str, str, str]]]
    ledger: dict[str, tuple[str, str, str]]
    owners: dict[tuple[str, str], str]
    rows: dict[str, set[int]]


@dataclass
class Database:
    """Tables, locks, prepared transactions, staged rows, the ledger."""

    world: World
    audit: Audit
    sessions: list[Session] = field(default_factory=list)
    prepared: dict[str, Held] = field(default_factory=dict)
    staged: dict[str, Held] = field(default_factory=dict)
    begun: dict[str, Held] = field(default_factory=dict)
    """Whose commit has taken its first step, and not yet its last."""
    ledger: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    committed_rows: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    away_until: int = -1
    refuses_until: int = -1
    known: dict[str, Txn] = field(default_factory=dict)
    """Whatever was prepared or staged here."""
    forgotten: dict[tuple[str, str, str], Progress] = field(default_factory=dict)
    """What a vague target has set aside at a rewind: all that was here."""
    past: list[Past] = field(default_factory=list)
    """What a standby may have, oldest first."""
    promoted: int = 0
    """How many standbys have taken its place."""

    def insert(self, session: Session, rows: list[int], *, unique: bool) -> None:
        """INSERT into the table itself.

        Raises:
            PostgresError: Somebody else holds a row's key, or the session is gone.
        """
        self.world.point(f"insert {rows}")
        if self._fault() is not None:
            session.broken = True
        for _ in range(LOCK_TIMEOUT):
            if session.broken:
                raise PostgresError("the connection is lost")
            if not unique or not self._locked(session, rows):
                if unique and self.committed_rows[keys_of(session.txn)] & set(rows):
                    raise PostgresError("duplicate key value violates unique constraint")
                session.txn.rows += rows
                return
            self.world.sleep()
        raise PostgresError("canceling statement due to lock timeout")

    def _locked(self, session: Session, rows: list[int]) -> bool:
        live = [s.txn for s in self.sessions if not s.broken and s.process.alive and s is not session]
        live += [held.txn for held in self.prepared.values()]
        return any(set(rows) & set(txn.rows) for txn in live if keys_of(txn) == keys_of(session.txn))

    def ask(self, what: str) -> None:
        """A small query.

        Raises:
            PostgresError: No answer.
        """
        self.world.point(what)
        if self._fault() is not None:
            raise PostgresError("no answer")

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Run all statements inside over one connection, which ends with the server that it leads to.

        Raises:
            NoAnswerError: Another server has taken its place meanwhile.
        """
        server = self.promoted
        yield
        if server != self.promoted:
            raise NoAnswerError

    def progress(self, scope: Scope) -> Progress:
        """Generation and epoch of the newest commit of this log that the ledger knows."""
        mine = (parse_transaction_name(gid) for gid, whose in self.ledger.items() if whose == scope)
        return max((Progress(name.start, name.epoch) for name in mine if name is not None), default=NOTHING)

    def set_aside(self, scope: Scope) -> None:
        """What is in the ledger no longer says how far the log has come."""
        names = [parse_transaction_name(gid) for gid in self.known]
        here = [Progress(name.start + 1, 0) for name in names if name is not None and name.scope == scope]
        self.forgotten[scope] = max(here, default=NOTHING)
        before = _before_a_rewind(scope)
        self.ledger = {gid: before if whose == scope else whose for gid, whose in self.ledger.items()}

    def facts(self, committable: Committable) -> LedgerFacts:
        """What the ledger says of a transaction that is neither prepared nor staged; `committed` asks for the rows."""
        gid, log = committable.transaction, committable.log
        before = self.progress(_before_a_rewind(committable.scope))
        if self.world.plan.config.vague:
            before = max(before, self.forgotten.get(committable.scope, NOTHING))
        return LedgerFacts("", {log: -1}, frozenset({gid} & self.ledger.keys()), {log: before})

    def transactions(self, scope: Scope, epoch: int) -> int:
        """How many transactions of an epoch the ledger knows."""
        mine = (parse_transaction_name(gid) for gid, whose in self.ledger.items() if whose == scope)
        return sum(name is not None and name.epoch == epoch for name in mine)

    def put_aside(self, session: Session, gid: str, where: dict[str, Held], what: str) -> None:
        """PREPARE TRANSACTION, or the COMMIT of staged rows.

        Raises:
            PostgresError: It failed, or its answer was lost.
        """
        self.world.point(f"{what} {gid[-8:]}")
        fault = self._fault()
        if session.broken or fault == 0 or gid in where:
            raise PostgresError(f"{what} failed")
        txn = session.txn
        txn.state = "prepared"
        where[gid] = Held(txn, (txn.pipeline, txn.sink, txn.log))
        self.known[gid] = txn
        self.keep()
        self.sessions.remove(session)
        if fault is not None:
            raise PostgresError("no answer")

    def end(self, gid: str, *, commit: bool) -> str:
        """COMMIT PREPARED or ROLLBACK PREPARED.

        Raises:
            NoAnswerError: See there.
        """
        what = f"{'commit' if commit else 'rollback'} prepared {gid[-8:]}"
        self.world.point(what)
        return self._ask(what, lambda: self._end(gid, commit=commit))

    def _end(self, gid: str, *, commit: bool) -> str:
        held = self.prepared.get(gid)
        if held is None:
            return MISSING
        if self._is_busy(held):
            return BUSY
        held.busy = held.txn.ending = True
        self._work([held], "ending")
        del self.prepared[gid]
        self._ended(gid, held, commit=commit)
        self.keep()
        return DONE

    def merge(self, gids: Sequence[str]) -> list[str]:
        """Move what is staged of these into the table, with its ledger rows; the gids that this call moved.

        Raises:
            NoAnswerError: See there, or the locks of another merge.
        """
        self.world.point(f"merge {[gid[-8:] for gid in gids]}")
        if self.away_until <= self.world.tick < self.refuses_until:
            raise PostgresError("new row violates check constraint")
        if self.world.plan.config.refers and any(self._lacks_parents(held) for held in map(self.staged.get, gids)):
            raise PostgresError("insert violates foreign key constraint")
        if self.world.plan.config.stepwise:
            return [gid for gid in gids if self._merge_in_steps(gid)]
        merged: list[str] = []
        self._ask("merge", lambda: merged.extend(self._take(gids, commit=True)) or DONE)
        return merged

    def _merge_in_steps(self, gid: str) -> bool:
        """Begin, show one row after another, end; whoever finds it begun goes on with it."""
        if gid not in self.begun:
            self._ask("begin", lambda: self._begin(gid))
        is_here = gid in self.begun
        while gid in self.begun:
            self.world.point(f"step {gid[-8:]}")
            self._ask("step", lambda: self._step(gid))
        return is_here

    def _begin(self, gid: str) -> str:
        held = self.staged.pop(gid, None)
        if held is None:
            return MISSING
        self.begun[gid], self.ledger[gid] = held, held.scope
        self.audit.of(held.txn).on_commit(held.txn)
        return DONE

    def _step(self, gid: str) -> str:
        held = self.begun.get(gid)
        if held is None:
            return DONE
        shown, rows = held.txn.shown, held.txn.rows
        if shown < len(rows):
            self.committed_rows[keys_of(held.txn)].add(rows[shown])
            self.audit.of(held.txn).on_visible(held.txn, [rows[shown]])
        else:
            del self.begun[gid]
            self.keep()
        return DONE

    def _lacks_parents(self, held: Held | None) -> bool:
        """Whether rows of the same decision that these refer to are not committed yet."""
        if held is None or held.txn.decision is None:
            return False
        others = self.audit.of(held.txn).prepared.values()
        parents = [txn for txn in others if txn.decision is held.txn.decision and target_of(txn) == "prepared"]
        return any(txn.state in ("open", "prepared") for txn in parents)

    def unstage(self, gid: str) -> list[str]:
        """Delete staged rows; the gids that were there.

        Raises:
            NoAnswerError: See there.
        """
        self.world.point(f"unstage {gid[-8:]}")
        found: list[str] = []
        self._ask("unstage", lambda: found.extend(self._take([gid], commit=False)) or DONE)
        return found

    def _take(self, gids: Sequence[str], *, commit: bool) -> list[str]:
        there = {gid: self.staged[gid] for gid in gids if gid in self.staged}
        if any(self._is_busy(held) for held in there.values()):
            raise NoAnswerError("canceling statement due to lock timeout")
        for held in there.values():
            held.busy = held.txn.ending = True
        self._work(list(there.values()), "merging")
        for gid, held in there.items():
            del self.staged[gid]
            self._ended(gid, held, commit=commit)
        self.keep()
        return list(there)

    def committed(self, gid: str) -> bool:
        """Whether the ledger has the row.

        Raises:
            NoAnswerError: See there.
        """
        self.world.point(f"look up {gid[-8:]}")
        if self._fault() is not None:
            raise NoAnswerError
        return gid in self.ledger

    def list_held(self) -> list[tuple[str, Held]]:
        """pg_prepared_xacts and the table of staged rows.

        Raises:
            PostgresError: No answer.
        """
        self.ask("list prepared")
        return [*self.prepared.items(), *self.staged.items()]

    # What the outside world does

    def go_away(self, ticks: int) -> None:
        """It does not answer for a while."""
        self.away_until = self.world.trouble(ticks)
        self.restart()

    def refuse(self, ticks: int) -> None:
        """Some row breaks a constraint, until somebody mends the table."""
        self.refuses_until = self.world.trouble(ticks)

    def recover(self) -> None:
        """All is well again."""
        self.away_until = self.refuses_until = -1
        for held in (*self.prepared.values(), *self.staged.values()):
            held.busy_until = -1

    def restart(self) -> None:
        """The server restarts."""
        for session in self.sessions:
            session.broken = True

    def keep(self) -> None:
        """Note that a standby may have come this far. Before that, it may know nothing of the pipeline."""
        if not self.owners or self.begun:
            return
        held = [{gid: (one.txn, one.scope) for gid, one in of.items()} for of in (self.prepared, self.staged)]
        rows = {target: set(rows) for target, rows in self.committed_rows.items()}
        self.past.append(Past(held[0], held[1], dict(self.ledger), dict(self.owners), rows))

    def fail_over(self, number: int) -> None:
        """Put a standby in its place, which lacks the newest commits, or has all of them."""
        if not self.past or self.begun:
            return
        lag = number % min(len(self.past), LONGEST_LAG)
        del self.past[len(self.past) - lag :]
        now, self.promoted = self.past[-1], self.promoted + 1
        self.audit.on_lost({"prepared", "staged"})
        self.restart()
        for gid, txn in self.known.items():
            if gid in now.prepared or gid in now.staged:
                self.audit.of(txn).on_gone_back(txn, "prepared")
            elif gid not in now.ledger and txn.state in ("prepared", "committed"):
                self.audit.of(txn).on_gone_back(txn, "aborted")
        self.prepared = {gid: Held(*one) for gid, one in now.prepared.items()}
        self.staged = {gid: Held(*one) for gid, one in now.staged.items()}
        self.ledger, self.owners = dict(now.ledger), dict(now.owners)
        self.committed_rows = defaultdict(set, {target: set(rows) for target, rows in now.rows.items()})

    def occupy(self, number: int) -> None:
        """Somebody else's session is at work on a prepared transaction, or on staged rows, for a while."""
        held = [one for where in (self.prepared, self.staged) for one in where.values() if one.txn.log]
        if held:
            held[number % len(held)].busy_until = self.world.trouble(number % 199)

    def _is_busy(self, held: Held) -> bool:
        return held.busy or self.world.tick < held.busy_until

    def rollback(self, number: int) -> None:
        """An operator rolls back some prepared transaction of the pipeline by hand."""
        for where in (self.prepared, self.staged):
            gids = [gid for gid, held in where.items() if held.txn.log and not held.busy]
            if gids:
                txn = where.pop(gids[number % len(gids)]).txn
                self.audit.of(txn).on_abort(txn, "operator")

    def stale_end(self, number: int) -> None:
        """Somebody repeats a COMMIT PREPARED of long ago."""
        gids = list(self.ledger)
        if gids:
            held = self.prepared.get(gids[number % len(gids)])
            if held is not None and not held.busy:
                del self.prepared[gids[number % len(gids)]]
                self._ended(gids[number % len(gids)], held, commit=True)

    # How it works

    def _ended(self, gid: str, held: Held, *, commit: bool) -> None:
        if commit:
            self.ledger[gid] = held.scope
            self.committed_rows[keys_of(held.txn)] |= set(held.txn.rows)
            self.audit.of(held.txn).on_commit(held.txn)
            self.audit.of(held.txn).on_visible(held.txn, held.txn.rows)
        else:
            self.audit.of(held.txn).on_abort(held.txn, "sink")

    def _work(self, held: list[Held], what: str) -> None:
        """The server takes its time, and finishes though its client dies; others meet it at work.

        Raises:
            NoAnswerError: It died meanwhile.
        """
        from .world import Killed

        server = self.promoted
        try:
            if self.world.current is not None:
                self.world.point(what)
        except Killed:
            pass
        finally:
            for one in held:
                one.busy = one.txn.ending = False
        if server != self.promoted:
            raise NoAnswerError

    def _fault(self) -> int | None:
        if self.world.tick < self.away_until:
            return 0
        task = self.world.current
        if task is None or not task.target_faults:
            return None
        self.world.disturbed += 1
        return task.target_faults.pop() % 3

    def _ask(self, what: str, call: Callable[[], str]) -> str:
        fault = self._fault()
        if fault is None:
            return call()
        if fault == 1:
            call()
        elif fault == 2:
            server = self.promoted
            self.world.later(what, lambda: _quietly(call) if server == self.promoted else None)
        self.world.note(f"{what} gets no answer ({('not done', 'answer lost', 'arrives late')[fault]})")
        raise NoAnswerError


def _quietly(call: Callable[[], str]) -> None:
    """Nobody waits for the answer any more."""
    with suppress(NoAnswerError):
        call()
