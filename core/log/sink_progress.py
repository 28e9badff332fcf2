"""How far each sink's target must have come: the newest commit of each sink, as the target's own ledger books it.

A ledger books a transaction under the transaction's own epoch. On the embedded engine that may be less than the epoch
of the decision: what was prepared for a checkpoint that was given up is committed by a later one (see
engine/source_and_sink.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..contract.names import Progress, Reached

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..contract.transaction import Committable
    from .entries import Decide

_UNKNOWN: Final = -1
"""An epoch that nothing is known of: less than any that a target remembers."""


def newest_commits(committed: Collection[Committable]) -> dict[str, Reached]:
    """Return, by sink, the newest commit among the committed transactions of one decision."""
    newest: dict[str, Progress] = {}
    for c in committed:
        newest[c.sink] = max(newest.get(c.sink, Progress(_UNKNOWN, _UNKNOWN)), Progress(c.generation, c.epoch))
    # A ledger counts the transactions of an epoch, whichever generation wrote them: some may have been healed.
    return {
        sink: Reached(at.generation, at.epoch, sum((c.sink, c.epoch) == (sink, at.epoch) for c in committed))
        for sink, at in newest.items()
    }


def reached_by(decision: Decide) -> Mapping[str, Reached]:
    """Return the newest commit of each sink in the epochs before a decision.

    An older version booked all transactions of a decision under its epoch, and counted them together. On Spark that is
    the same. On the engine, the proofs say under which epoch a sink's newest rows were written.
    """
    if decision.own_epochs or decision.follows is None:
        return decision.reached
    return {sink: _corrected(decision, sink, at) for sink, at in decision.reached.items()}


def _corrected(decision: Decide, sink: str, at: Reached) -> Reached:
    """Return a sink's newest commit with its own epoch, and its number of transactions if that can be known."""
    epochs = decision.proofs.epochs if decision.proofs is not None else ()
    newest = max((number for number, one in enumerate(epochs) if sink in one.sinks), default=None)
    if newest is None:
        return at._replace(epoch=_UNKNOWN, transactions=0)
    # Of the epochs of one decision, only the last one has an end. Those of this decision that come before the sink's
    # newest one were counted with it; the oldest epoch may follow others that were dropped from the proofs.
    before = newest
    while before and epochs[before - 1].end is None:
        before -= 1
    alone = before > 0 and not any(sink in one.sinks for one in epochs[before:newest])
    return at._replace(epoch=epochs[newest].epoch, transactions=at.transactions if alone else 0)
