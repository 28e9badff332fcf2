"""Two sinks on the simulated database; they follow the PostgreSQL sink and its two ways to commit step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import Remembered, other_log, outdated_log, parse_transaction_name
from onceward.core.contract.sink import Guarantee
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)
from onceward.core.errors import PostgresError

from .audit import Txn, hash_of, readable
from .database import BUSY, DONE, Database, NoAnswerError, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.contract.transaction import Progress

    from .audit import Audit
    from .world import World


class DatabaseSink(Ledger):
    """What both sinks have in common; each is its own ledger."""

    transaction_timeout: float | None = None
    records_transactions = True
    guarantee = Guarantee.EXACTLY_ONCE
    select = where = None
    proof = ordered = False  # rows are numbers, which the audit hashes
    kind = ""

    def __init__(self, name: str, world: World, audit: Audit, database: Database, *, unique: bool) -> None:
        self.name = name
        self.world = world
        self.audit = audit
        self.database = database
        self.unique = unique

    def dataset(self) -> tuple[str, str]:
        """One table."""
        return "simulated", self.kind

    def accept_loss(self, scope: Scope) -> None:
        """Nothing to do: the ledger tells what is there."""

    def validate(self, schema: object) -> None:
        """Its columns fit."""

    def begin(self, context: WriteContext) -> tuple[WriteContext, TransactionName, Session]:
        """Open a session."""
        self.database.ask("connect")
        assert self.world.current is not None
        txn = Txn(*context.scope[:2], context.log, context.generation, context.epoch, context.subtask, context.attempt)
        self.audit.on_begin(txn)
        session = Session(self.world.current.process, txn)
        self.database.sessions.append(session)
        name = self.transaction_name(context)
        txn.name = str(name)
        return context, name, session

    def transaction_name(self, context: WriteContext) -> TransactionName:
        """A name that is used once; a mutant uses it again."""
        return context.transaction_name()._replace(unique=self.world.token()[:8])

    def write(self, transaction: tuple[WriteContext, TransactionName, Session], batch: list[int]) -> None:
        """Into the table, or into the staging table, where no key matters."""
        self.database.insert(transaction[2], list(batch), unique=self.unique and self.kind == "prepared")

    def pre_commit(self, transaction: tuple[WriteContext, TransactionName, Session]) -> Committable:
        """PREPARE TRANSACTION, or commit the staged rows."""
        context, name, session = transaction
        where = self.database.prepared if self.kind == "prepared" else self.database.staged
        self.database.put_aside(session, str(name), where, "prepare" if self.kind == "prepared" else "stage")
        rows = len(session.txn.rows)
        handle = {"rows": rows} if self.kind == "staged" else {}  # no listing knows of it
        committable = context.committable(
            kind=self.kind, transaction=str(name), handle=handle, rows=rows, proof=readable(session.txn.rows)
        )
        committable = msgspec.structs.replace(committable, handed=hash_of(session.txn.rows))
        self.audit.on_prepared(committable.identity(), session.txn)
        return committable

    def discard(self, transaction: tuple[WriteContext, TransactionName, Session]) -> None:
        """Roll back."""
        transaction[2].broken = True
        if transaction[2].txn.state == "open":
            self.audit.on_abort(transaction[2].txn, "discard")

    def expires_at(self, committable: Committable) -> None:
        """Never."""

    def warm_up(self, context: WriteContext) -> None:
        """Nothing to make ready."""

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """One by one."""
        return [self.commit(committable) for committable in committables]

    def commit(self, committable: Committable) -> CommitOutcome:
        """See the subclasses."""
        raise NotImplementedError

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """What is prepared or staged under exactly this pipeline's and sink's name."""
        return self._listed(lambda name: self.is_mine(name, scope))

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """What is prepared or staged by this pipeline and log, whatever the sink's name."""
        return self._listed(lambda name: (name.scope.pipeline, name.scope.log) == (pipeline, log))

    def _listed(self, wanted: Callable[[TransactionName], bool]) -> list[Committable]:
        names = [parse_transaction_name(gid) for gid, _ in self.database.list_held()]
        return [Committable.named(self.kind, name) for name in names if name is not None and wanted(name)]

    def is_mine(self, name: TransactionName, scope: Scope) -> bool:
        """Exactly this pipeline's and sink's; a mutant compares prefixes."""
        return name.scope[:2] == scope[:2]

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """What is held under its name, and what the ledger says."""
        try:
            with self.database.connected():
                held = {gid for gid, _ in self.database.list_held()}
                return [self._seen(committable, held) for committable in committables]
        except NoAnswerError:
            raise PostgresError("no answer") from None

    def _seen(self, committable: Committable, held: set[str]) -> Observation:
        if committable.transaction in held:
            return Observation.PREPARED
        self.database.committed(committable.transaction)  # the question, which may get no answer
        return self.database.facts(committable).observe(committable)[0]

    def _without(self, committable: Committable) -> AbortOutcome:
        """What an abort proved that found nothing under the name."""
        self.database.committed(committable.transaction)
        return self.database.facts(committable).abort_outcome(committable)

    def ledger(self) -> Ledger:
        """The database remembers."""
        return self

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered:
        """The owner, and how far it had come."""
        self.database.ask("check claim")
        owner = self.database.owners.get(scope[:2])
        if owner not in (None, scope.log):
            raise other_log(scope, str(owner), "the database")
        if owner is None:
            self._refuse_rivals(scope)
        known = self.database.progress(scope)
        if known > newest:
            raise outdated_log(scope, known, newest, "the database")
        return Remembered(owner == scope.log, known, transactions=self.database.transactions(scope, known.epoch))

    def claim(self, scope: Scope) -> None:
        """The first log to come owns the names."""
        self.database.ask("claim")
        if scope[:2] not in self.database.owners:
            self._refuse_rivals(scope)
        owner = self.database.owners.setdefault(scope[:2], scope.log)
        self.database.keep()
        if owner != scope.log:
            raise other_log(scope, owner, "the database")

    def release(self, scope: Scope) -> None:
        """Hand the names over, and set aside how far the log had come."""
        self.database.ask("release")
        self.database.set_aside(scope)
        mine = [names for names in self.database.owners if names[0] == scope.pipeline]
        self.database.owners |= dict.fromkeys([*mine, scope[:2]], scope.log)

    def _refuse_rivals(self, scope: Scope) -> None:
        """A pipeline that another log has written here is refused, whatever its sinks are called."""
        for (pipeline, sink), log in self.database.owners.items():
            if pipeline == scope.pipeline and log != scope.log:
                raise other_log(scope, str(log), "the database", sink=sink)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Nothing to tidy."""


class PreparedSink(DatabaseSink):
    """Rows wait as a prepared transaction; its ledger row is in it."""

    kind = "prepared"

    def commit(self, committable: Committable) -> CommitOutcome:
        """COMMIT PREPARED; if the name is gone, the ledger tells."""
        try:
            with self.database.connected():
                answer = self.database.end(committable.transaction, commit=True)
                if answer == DONE:
                    return CommitOutcome(CommitStatus.COMMITTED)
                if answer == BUSY:
                    return CommitOutcome(CommitStatus.RETRY_LATER, BUSY)
                self.database.committed(committable.transaction)
                return self.database.facts(committable).commit_outcome(committable, answer)
        except NoAnswerError:
            return CommitOutcome(CommitStatus.RETRY_LATER, "no answer")

    def abort(self, committable: Committable) -> AbortOutcome:
        """ROLLBACK PREPARED; if the name is gone, the ledger tells who won."""
        try:
            with self.database.connected():
                answer = self.database.end(committable.transaction, commit=False)
                if answer == DONE:
                    return AbortOutcome(AbortStatus.ABORTED)
                if answer == BUSY:
                    return AbortOutcome(AbortStatus.RETRY_LATER, BUSY)
                return self._without(committable)
        except NoAnswerError:
            return AbortOutcome(AbortStatus.RETRY_LATER, "no answer")


class StagedSink(DatabaseSink):
    """Rows wait in a staging table; one merge moves them and writes their ledger rows."""

    kind = "staged"

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """One merge for all; what was not staged any more is looked up."""
        try:
            with self.database.connected():
                merged = self.database.merge([c.transaction for c in committables])
                return [self._outcome(c, merged) for c in committables]
        except NoAnswerError:
            return [CommitOutcome(CommitStatus.RETRY_LATER, "no answer") for _ in committables]

    def _outcome(self, committable: Committable, merged: list[str]) -> CommitOutcome:
        if committable.transaction in merged:
            return CommitOutcome(CommitStatus.COMMITTED)
        self.database.committed(committable.transaction)
        return self.database.facts(committable).commit_outcome(committable)

    def _seen(self, committable: Committable, held: set[str]) -> Observation:
        begun = committable.transaction in self.database.begun
        return Observation.BEGUN if begun else super()._seen(committable, held)

    def abort(self, committable: Committable) -> AbortOutcome:
        """Delete the staged rows; the ledger tells who won if there are none."""
        try:
            with self.database.connected():
                if self.database.unstage(committable.transaction):
                    return AbortOutcome(AbortStatus.ABORTED)
                return self._without(committable)
        except NoAnswerError:
            return AbortOutcome(AbortStatus.RETRY_LATER, "no answer")
