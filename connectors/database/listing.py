"""What is prepared or staged in a database under exactly a pipeline's and a sink's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from onceward.core.names import Scope
from onceward.core.transaction import Observation

from . import ledger
from .engines import dialect_for, reading
from .own_tables import exists, tables_of
from .target import PREPARED, STAGED, make_committable, own_name

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    return [Observation.PREPARED if c.transaction in waiting else facts.observe(c)[0] for c in committables]


def _list(target: Target, connection: sa.Connection, pipeline: str, sink: str) -> list[Committable]:
    two_phase = dialect_for(target).two_phase
    prepared = two_phase.waiting(connection, pipeline, sink) if two_phase is not None else []
    found = [make_committable(PREPARED, name) for name in prepared]
    if not exists(target, connection):
        return found
    for text, rows in _staged(target, connection, pipeline, sink):
        name = own_name(text, pipeline, sink)
        if name is not None:
            found.append(make_committable(STAGED, name, rows))
    return found


def _staged(target: Target, connection: sa.Connection, pipeline: str, sink: str) -> list[tuple[str, int]]:
    """Names and rows of what is staged and not merged, whole or not."""
    staged = tables_of(target).staged
    query = sa.select(staged.c.name, staged.c.row_count).where(staged.c.pipeline == pipeline, staged.c.sink == sink)
    return [(row[0], row[1]) for row in connection.execute(query.order_by(staged.c.name))]


def open_names(target: Target) -> set[Scope]:
    """Under which of onceward's names, of any pipeline, something is prepared in this database or staged."""
    two_phase = dialect_for(target).two_phase
    with reading(target, "cannot list") as connection:
        found = two_phase.scopes(connection) if two_phase is not None else set()
        if exists(target, connection):
            of = tables_of(target).staged.c
            found |= {Scope(*row) for row in connection.execute(sa.select(of.pipeline, of.sink, of.log))}
    return found
