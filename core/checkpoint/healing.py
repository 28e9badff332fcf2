"""Write again what was lost of a decided epoch, and nothing else.

When some of a decided epoch is visible and some is proven lost, neither voiding the decision nor going on is right. But
the epoch can be computed again from the same input, and the decision holds, for each lost transaction, the number and
the hash of the rows that its sink was handed (handed_rows.py; not its `proof`, which leaves out what cannot be read
back from the target). So:

1. Only the sinks and subtasks that lost something write; everybody else computes and writes nothing.
2. What they were handed must be the same rows, by count and hash for each sink. The hash is the sum of a hash of each
   row, so it does not matter how the rows are spread over the lost subtasks. If the rows differ, nothing is recorded,
   and what was written is aborted. A transaction without such a hash is not written again (loss_table.py).
3. REPLACE makes the decision name the new transactions instead of the lost ones. It is an entry of the log like any
   other, so a fenced writer cannot put it, and whoever finds it commits the new ones.
4. A crash before REPLACE leaves transactions that no decision names: the next START sweeps them and begins again.
   A crash after it leaves a decision that can be finished by anybody.

Invariant 3 holds: the epoch still has one decision, about the same rows. Invariant 1 holds: a replacement is committed
only once REPLACE names it. What it replaces can never be committed, by the target's proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from ..contract.proof import total
from ..errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..contract.transaction import Committable
    from ..log import Decide


class Lost(NamedTuple):
    """What is lost of a decided epoch.

    Attributes:
        decision: Decision of the epoch.
        committables: Its lost transactions.
        subtasks: Number of subtasks that wrote the epoch; 0 if that is not known.
    """

    decision: Decide
    committables: tuple[Committable, ...]
    subtasks: int = 0

    @property
    def sinks(self) -> set[str]:
        """Names of the sinks that lost something."""
        return {c.sink for c in self.committables}

    def writes(self, sink: str) -> frozenset[int] | None:
        """Return which subtasks of a sink write again; None for all, because the sink lost all that it had."""
        committables = [c for c in self.decision.committables if c.sink == sink]
        lost = [c for c in self.committables if c.sink == sink]
        return None if len(lost) == len(committables) else frozenset(c.subtask for c in lost)


def check_same_rows(lost: Lost, again: Collection[Committable]) -> None:
    """Check that the transactions written again hold the rows of the lost ones (2).

    Raises:
        DataLossError: They do not.
    """
    for sink in sorted(lost.sinks):
        rows, before = _handed(sink, lost.committables)
        rows_again, after = _handed(sink, again)
        # (2) Equal counts are not enough: other rows of the same number would tear the epoch silently.
        if not before or (rows, before) != (rows_again, after):
            raise DataLossError(
                f"the rows that sink {sink} lost cannot be written again: the decision recorded {rows} rows with hash "
                f"{before or 'unknown'}, and computing the epoch again gave {rows_again} rows with hash "
                f"{after or 'unknown'}. Nothing more was committed. Does the query depend on the time, on random "
                "numbers, on the order of its input, on the number of subtasks, on a table that has changed, or on "
                "records that its source has deleted or replaced since (retention, compaction, a topic made anew)? "
                "Choices: make it compute the same rows and start again; rewind='why', with an older checkpoint, "
                "writes everything after it again; on_lost='skip' continues without them and leaves an audit record",
                pipeline=lost.decision.pipeline,
                sink=sink,
                epoch=lost.decision.epoch,
            )


def is_proven(committable: Committable) -> bool:
    """Return whether the rows of a transaction can be compared with those that are written in its place."""
    return committable.handed is not UNSET or not committable.rows


def _handed(sink: str, committables: Collection[Committable]) -> tuple[int, str]:
    own = [c for c in committables if c.sink == sink]
    # (2) What was not hashed was not compared.
    known = all(is_proven(c) for c in own)
    return sum(c.rows for c in own), total(c.handed for c in own if c.handed is not UNSET) if known else ""
