"""What PostgresSink and SqlAlchemySink are: a target, how rows wait, and the ledger."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from onceward.core.errors import ConfigurationError
from onceward.sinks.base import TwoPhaseCommitSink

from . import ledger
from .checks import check_server, check_table, choose_path, path_without_server, read_server
from .engines import dialect_for
from .listing import inspect, list_lingering, list_of_log
from .merging import abort_staged, commit_staged
from .own_tables import ensure
from .prepared import PreparedWriting, abort_prepared, commit_prepared
from .settings import CommitPath, commit_mode, positive, write_mode
from .staging import PieceWriting
from .target import PREPARED, STAGED, Target
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.transaction import (
        AbortOutcome,
        CommitOutcome,
        Committable,
        Observation,
        Progress,
        WriteContext,
    )

_log = logging.getLogger("onceward.database")


class Resolution(NamedTuple):
    """How committables of one kind end."""

    commit: Callable[[Sequence[Committable]], Sequence[CommitOutcome]]
    abort: Callable[[Committable], AbortOutcome]


class DatabaseSink(TwoPhaseCommitSink[Writing]):
    """Base of PostgresSink and SqlAlchemySink.

    Attributes:
        mode: "insert" or "upsert".
    """

    mode: str
    target: Target

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        mode: str,
        modes: tuple[str, ...],
        commit: str,
        ledger_epochs: int,
        parallelism: int | None,
        **settings: Any,
    ) -> None:
        super().__init__(name, **settings)
        self.mode = write_mode(mode, target.key, modes)
        self.commit_mode = commit_mode(mode, commit)
        self.target = target
        positive("lock_timeout", target.lock_timeout)
        positive("answer_within", target.answer_within)
        self.ledger_epochs = int(positive("ledger_epochs", ledger_epochs))
        self.parallelism = parallelism
        self._path: CommitPath | None = path_without_server(self.commit_mode, self.target)

    @property
    def commit_path(self) -> str | None:
        """How rows wait: "prepared" or "staging"; None until commit="auto" has asked the server."""
        return None if self._path is None else str(self._path)

    def __repr__(self) -> str:
        key = f", key={list(self.target.key)}" if self.target.key else ""
        what = f"{self.name!r}, table={str(self.target.table)!r}, mode={self.mode!r}{key}"
        return f"{type(self).__name__}({what}, url={str(self.target.url)!r})"

    def resolutions(self) -> Mapping[str, Resolution]:
        """By kind of committable."""
        return {
            PREPARED: Resolution(partial(commit_prepared, self.target), partial(abort_prepared, self.target)),
            STAGED: Resolution(partial(commit_staged, self.target), partial(abort_staged, self.target)),
        }

    def validate(self, schema: pa.Schema) -> None:
        """Check connection, setup, table, columns, key and rights; create what is missing and was requested."""
        facts = read_server(self.target)
        self._path, why = choose_path(self.commit_mode, self.target, facts)
        check_server(facts, self.target, self.parallelism, self._path)
        _log.info("sink %s commits through %s: %s", self.name, self._path, why)
        ensure(self.target)
        check_table(self.target, self.name, schema, self._path)

    def validate_complete_mode(self) -> None:
        """Complete mode fits an upsert only."""
        if self.mode != "upsert":
            raise ConfigurationError(
                "output mode complete writes the whole result at each epoch, which would insert every row again: use "
                "mode 'upsert' with a key",
                sink=self.name,
            )

    def begin(self, context: WriteContext) -> Writing:
        """Open a transaction, or start to collect rows for staging."""
        if self._path is None:
            self._path, why = choose_path(self.commit_mode, self.target, read_server(self.target))
            _log.info("sink %s commits through %s: %s", self.name, self._path, why)
        if self._path is CommitPath.PREPARED:
            return PreparedWriting(self.target, context)
        if dialect_for(self.target).bulk is None:
            return PieceWriting(self.target, context)
        from .postgres.staging import TableWriting  # noqa: PLC0415 - an extra

        return TableWriting(self.target, context)

    def write(self, transaction: Writing, batch: pa.RecordBatch) -> None:
        transaction.write(batch)

    def pre_commit(self, transaction: Writing) -> Committable:
        """Prepare, or commit to the staging table."""
        return transaction.pre_commit()

    def discard(self, transaction: Writing) -> None:
        """Roll back, or delete what was staged."""
        transaction.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.commit_many([committable])[0]

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit several: prepared ones one by one on one connection, staged ones by one merge per epoch."""
        resolutions = self.resolutions()
        outcomes: dict[str, CommitOutcome] = {}
        for kind in dict.fromkeys(self._kind(c) for c in committables):
            chosen = [c for c in committables if c.kind == kind]
            answers = resolutions[kind].commit(chosen)
            outcomes.update({c.transaction: answer for c, answer in zip(chosen, answers, strict=True)})
        return [outcomes[c.transaction] for c in committables]

    def abort(self, committable: Committable) -> AbortOutcome:
        """Abort exactly this one."""
        return self.resolutions()[self._kind(committable)].abort(committable)

    def _kind(self, committable: Committable) -> str:
        if committable.kind not in self.resolutions() or committable.version != 1:
            raise ConfigurationError(
                f"a committable of kind {committable.kind}, version {committable.version} is not a "
                f"{type(self).__name__}'s",
                sink=self.name,
                transaction=committable.transaction,
            )
        return committable.kind

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """List what is prepared in this database, or staged beside this ledger, under exactly these names."""
        return list_lingering(self.target, scope.pipeline, scope.sink)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """List the same for all sinks of this pipeline and log."""
        return list_of_log(self.target, pipeline, log)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Ask the database about each transaction."""
        return inspect(self.target, committables)

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        ledger.check(self.target, scope, newest)

    def claim(self, scope: Scope) -> None:
        """Record in the ledger that this decision log owns the names."""
        ledger.claim(self.target, scope)

    def release(self, scope: Scope) -> None:
        """Hand the names over to this decision log, and set aside how far it had come."""
        ledger.release(self.target, scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Prune the ledger periodically."""
        if ledger.prune_due(epoch) and epoch > self.ledger_epochs:
            ledger.prune(self.target, scope, epoch - self.ledger_epochs + 1)
