"""Trying rows before their decision, so that none of them is refused after it.

The checks of conversions.py know types, not tables: what a CHECK says, what a generated column makes of a value,
whether a text is JSON or has characters that the column cannot hold. So the database itself tries rows when they are
staged, in a place that forgets them (Dialect.trial), by the very statement that will move them.

What a trial cannot know is what the merge meets: other rows of the same keys, rows that a foreign key needs,
triggers, partitions, and whatever changes meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.errors import ConfigurationError, SinkError

from .engines import dialect_for, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import sqlalchemy as sa

    from .rows import Plan
    from .target import Target


def try_rows(target: Target, connection: sa.Connection, plan: Plan, batches: Sequence[pa.RecordBatch]) -> None:
    """Have the database take these rows and forget them; its error says why it refuses them.

    The connection is in a transaction, which must end before it tries others.
    """
    dialect = dialect_for(target)
    with dialect.trial(connection, plan.table) as (place, has_keys):
        upsert = target.key and has_keys
        statement = plan.upsert(dialect, target.key, place) if upsert else plan.insert(place)
        for batch in batches:
            for rows in plan.pieces(batch):
                connection.execute(statement, rows)


def check_trial(target: Target, table: sa.TableClause) -> None:
    """See that rows can be tried.

    Raises:
        ConfigurationError: They cannot; the message says what is missing.
    """
    dialect = dialect_for(target)
    if not dialect.trial_needs:
        return
    try:
        with transaction(target, "cannot try rows") as connection, dialect.trial(connection, table):
            pass
    except SinkError as error:
        if error.retryable:
            raise
        raise ConfigurationError(f"staged rows are tried first, which needs {dialect.trial_needs}: {error}") from None
