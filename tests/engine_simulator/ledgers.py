"""Sinks whose target remembers how far a decision log had come, as databases, folders and Redis do."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import NOTHING, Progress, Remembered, outdated_log, parse_transaction_name
from onceward.core.contract.transaction import CommitStatus, Observation

from ..sink_kit import TargetSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.contract.transaction import CommitOutcome, Committable

    from ..sink_kit import Target


class LedgerSink(TargetSink):
    """Writes to a Target, which keeps a ledger.

    Args:
        target: The target.
        name: Of the sink.
        counts: The ledger knows each transaction, as that of a database does; else only the newest one.
    """

    def __init__(self, target: Target, name: str, *, counts: bool) -> None:
        super().__init__(target, name)
        self.kept = RowsOfLedger(self, counts=counts)

    def commit(self, committable: Committable) -> CommitOutcome:
        outcome = super().commit(committable)
        if outcome.status is CommitStatus.COMMITTED:
            self.kept.add(committable)
        return outcome

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        return [self._seen(committable) for committable in committables]

    def _seen(self, committable: Committable) -> Observation:
        if committable.transaction in self.target.prepared:
            return Observation.PREPARED
        return self.kept.observe(committable)

    def ledger(self) -> Ledger:
        return self.kept


class RowsOfLedger(Ledger):
    """One row for each transaction that was committed, in the target; older ones are pruned."""

    def __init__(self, sink: LedgerSink, *, counts: bool) -> None:
        self.records_transactions = counts  # type: ignore[misc]
        self._name = sink.name
        self._rows: defaultdict[Scope, set[TransactionName]] = defaultdict(set)
        self._set_aside: defaultdict[Scope, set[TransactionName]] = defaultdict(set)
        """Those of them from before a rewind."""
        self._owned: set[Scope] = set()
        self._pruned: defaultdict[Scope, int] = defaultdict(int)
        """Rows of epochs below it may be missing."""

    def add(self, committable: Committable) -> None:
        name = parse_transaction_name(committable.transaction)
        assert name is not None
        self._rows[name.scope].add(name)

    def observe(self, committable: Committable) -> Observation:
        if parse_transaction_name(committable.transaction) in self._rows[committable.scope]:
            return Observation.COMMITTED
        return Observation.UNKNOWN if committable.epoch < self._pruned[committable.scope] else Observation.ABORTED

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered:
        known = self._newest(scope)
        if known > newest:
            raise outdated_log(scope, known, newest, self._name)
        count = sum(name.epoch == known.epoch for name in self._counted(scope))
        return Remembered(scope in self._owned, known, transactions=count if self.records_transactions else None)

    def claim(self, scope: Scope) -> None:
        self._owned.add(scope)

    def release(self, scope: Scope) -> None:
        self._owned.add(scope)
        self._set_aside[scope] |= self._rows[scope]

    def completed(self, scope: Scope, epoch: int) -> None:
        """Keep the rows of the newest epoch, and of this one."""
        oldest = min(epoch, self._newest(scope).epoch)
        self._rows[scope] = {name for name in self._rows[scope] if name.epoch >= oldest}
        self._pruned[scope] = max(self._pruned[scope], epoch)

    def _counted(self, scope: Scope) -> set[TransactionName]:
        return self._rows[scope] - self._set_aside[scope]

    def _newest(self, scope: Scope) -> Progress:
        return max((Progress(name.start, name.epoch) for name in self._counted(scope)), default=NOTHING)
