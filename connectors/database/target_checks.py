"""Checks of the tables that sinks write to: of what `validate` refuses, all that the table alone shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.contract.findings import Finding, failed, ok, skipped
from onceward.core.errors import ConfigurationError, SchemaError, SinkError, SqlError

from .engines import row_dialect_for
from .tables import describe, forget_description

if TYPE_CHECKING:
    from .described_table import DescribedTable
    from .sink import DatabaseSink

_CHECK: Final = "table"


def check_written(sink: DatabaseSink) -> Finding:
    """Check that the sink's table is there, can be written exactly once, and may be written by this role.

    Columns are not compared: only the pipeline knows those of its rows.
    """
    where = str(sink.target.table)
    try:
        forget_description(sink.target)
        described = describe(sink.target, sink.target.table)
        if described is None and sink.target.create_table:
            return skipped(_CHECK, "it does not exist; the sink creates it", where)
        if described is None:
            return failed(_CHECK, "it does not exist", "create it, or let the sink do so with create_table=True", where)
        sink.check_table(None)
        return ok(_CHECK, f"it can be written exactly once{_upserts(sink, described)}", where)
    except (ConfigurationError, SchemaError) as error:
        return failed(_CHECK, error.message, "correct it: the pipeline's next start is refused", where)
    except SinkError as error:
        refused = isinstance(error, SqlError)
        advice = "correct it: the pipeline's next start is refused" if refused else "check address, role and password"
        return failed(_CHECK, str(error), advice, where)


def _upserts(sink: DatabaseSink, described: DescribedTable) -> str:
    """Return by which key rows can be upserted, for a sink that inserts."""
    if sink.target.key or described.uniques is None:
        return ""
    dialect = row_dialect_for(sink.target)
    keys = [sorted(key) for key in described.uniques if not dialect.check_key(described.uniques, sorted(key))]
    if keys:
        return f" by inserts, and by upserts with key {' or '.join(map(str, keys))}"
    several = "several unique keys" if described.uniques else "no unique key"
    return f" by inserts; not by upserts, because it has {several}"
