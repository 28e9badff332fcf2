"""Checks of the tables that sinks write to: of what `validate` refuses, all that the table alone shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError, SchemaError, SinkError
from onceward.core.operations.findings import Finding, failed, ok, skipped

from .dialect import RowDialect
from .engines import dialect_for, reading
from .tables import describe, forget
from .target import CommitPath

if TYPE_CHECKING:
    from .sink import DatabaseSink

_CHECK: Final = "table"


def check_written(sink: DatabaseSink) -> Finding:
    """Check that the sink's table is there, can be written exactly once, and may be written by this role.

    Columns are not compared: only the pipeline knows those of its rows.
    """
    where = str(sink.target.table)
    try:
        forget(sink.target)
        described = describe(sink.target, sink.target.table)
        if described is None and sink.target.create_table:
            return skipped(_CHECK, "it does not exist; the sink creates it", where)
        if described is None:
            return failed(_CHECK, "it does not exist", "create it, or let the sink do so with create_table=True", where)
        refused = _refused(sink) or ("" if described.kind == "table" else f"it is {described.kind}")
        dialect = dialect_for(sink.target)
        if not refused and isinstance(dialect, RowDialect):
            with reading(sink.target, f"cannot look at table {where}") as connection:
                refused = dialect.refuses(connection, described.table)
    except SinkError as error:
        return failed(_CHECK, str(error), "check address, role and password", where)
    if refused:
        return failed(_CHECK, refused, "correct it: the pipeline's next start is refused", where)
    return ok(_CHECK, "it can be written exactly once", where)


def _refused(sink: DatabaseSink) -> str:
    """Return what PostgreSQL's own catalog has against it: kinds, rights, rules, policies."""
    if sink.target.url.backend != "postgresql":
        return ""
    from .postgres.catalog import check_writable  # noqa: PLC0415 - an extra
    from .postgres.session import session  # noqa: PLC0415

    path = CommitPath.STAGING if sink.commit_mode is CommitPath.STAGING or sink.target.key else CommitPath.PREPARED
    try:
        with reading(sink.target, "cannot look at a table") as connection, session(connection) as lent:
            check_writable(lent, sink.target, path)
    except (ConfigurationError, SchemaError) as error:
        return error.message
    return ""
