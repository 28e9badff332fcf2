"""What is prepared or staged in a database under exactly a pipeline's and a sink's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.transaction import Observation

from . import ledger, own_tables
from .engines import dialect_for, reading
from .staging import staged_names
from .target import PREPARED, STAGED, make_committable, own_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from onceward.core.transaction import Committable

    from .target import Target


def list_lingering(target: Target, pipeline: str, sink: str) -> list[Committable]:
    """Both, whichever way the sink writes now: it may have written the other way before."""
    with reading(target, "cannot list") as connection:
        return _list(target, connection, pipeline, sink)


def list_of_log(target: Target, pipeline: str, log: str) -> list[Committable]:
    """Both, of exactly this pipeline and decision log, whatever the sink's name.

    The names of sinks are those that were noted when they wrote: MariaDB's identifiers hold a digest of them.
    """
    with reading(target, "cannot list") as connection:
        found = [
            _list(target, connection, pipeline, sink) for sink in ledger.sinks_of(target, connection, pipeline, log)
        ]
    return [committable for listed in found for committable in listed if committable.log == log]


def inspect(target: Target, committables: Sequence[Committable]) -> list[Observation]:
    """The state of each, of one pipeline's sink.

    First what is prepared or staged, then the ledger: in the other order a commit in between would look like an abort.
    """
    if not committables:
        return []
    first = committables[0]
    with reading(target, "cannot inspect") as connection:
        waiting = {c.transaction for c in _list(target, connection, first.pipeline, first.sink)}
        ended = [c.transaction for c in committables if c.transaction not in waiting]
        facts = ledger.facts(target, connection, first.pipeline, first.sink, ended)
    return [Observation.PREPARED if c.transaction in waiting else facts.state(c) for c in committables]


def _list(target: Target, connection: sa.Connection, pipeline: str, sink: str) -> list[Committable]:
    two_phase = dialect_for(target).two_phase
    prepared = two_phase.waiting(connection, pipeline, sink) if two_phase is not None else []
    found = [make_committable(PREPARED, name) for name in prepared]
    if not own_tables.exists(target, connection):
        return found
    for text, rows in staged_names(target, connection, pipeline, sink):
        name = own_name(text, pipeline, sink)
        if name is not None:
            found.append(make_committable(STAGED, name, rows))
    return found
