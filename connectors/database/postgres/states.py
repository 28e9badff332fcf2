"""What the server says of transactions, without touching them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.transaction import Observation

from .connections import borrowed
from .listing import list_lingering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.transaction import Committable

    from .target import Target


def inspect(target: Target, committables: Sequence[Committable]) -> list[Observation]:
    """The state of each, of one pipeline's sink.

    First what is prepared or staged, then the ledger: in the other order a commit in between would look like an abort.
    """
    if not committables:
        return []
    first = committables[0]
    gids = [c.transaction for c in committables]
    with borrowed(target.dsn, "cannot inspect", answer_within=target.answer_within) as connection:
        waiting = {c.transaction for c in list_lingering(connection, target.ledger, first.pipeline, first.sink)}
        facts = target.ledger.facts(connection, first.pipeline, first.sink, gids)
    return [Observation.PREPARED if c.transaction in waiting else facts.state(c) for c in committables]
