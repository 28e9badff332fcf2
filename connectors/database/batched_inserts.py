"""Rows that are inserted by statements, for databases that take no stream of rows; staged rows are Arrow batches.

Staged rows are kept as Arrow's IPC streams, a few megabytes each, and no transaction is open while rows arrive: on
SQLite it would keep every other writer out. A writer adds rows only while its row in `staged` is there, so rows that
were swept stay swept. merging.py moves them.

A decided row cannot be refused any more, and the checks of conversions.py know types, not tables: not what a CHECK
demands, what a generated column makes of a value, whether a text is JSON or has characters that the column cannot hold.
So the database itself tries rows when they are staged, in a place that forgets them (Dialect.trial), by the very
statement that will move them. A trial cannot know the conditions of the merge: other rows with the same keys, rows that
a foreign key needs, triggers, partitions, and whatever changes meanwhile.

Where refused rows go to dead letters, these conditions count as well (DatabaseSink.trying_rows): all rows of the
subtask are inserted into the table itself before the last of them are staged, and taken back. What changes until the
merge is then the only thing left that may refuse them.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.contract.transaction import Committable, WriteContext
from onceward.core.errors import ConfigurationError, OncewardError, RetryableSinkError, SqlError, text_of
from onceward.core.kit.pieces import pieces, size_of
from onceward.core.kit.rows import without_dictionary as decoded_array

from . import ledger_tables
from .column_matching import InsertWriter, check_same, make_plan
from .engines import SLOWEST, row_dialect_for, transaction
from .loader import ChangedError, Loader, Movement, read_movement
from .own_tables import check_own, delete_named, identity_row, staged_handle, tables_of
from .tables import check_described, check_usable, existing, plan_for, tries_in_table
from .target import STAGED, CommitPath
from .writing import HeldWriting, Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.row_hash import RowHash

    from .column_matching import Plan
    from .described_table import DescribedTable
    from .dialect import RowDialect, RowWriter
    from .target import DatabaseTarget

_log = logging.getLogger("onceward.database")

CHUNK_BYTES: Final = 2 * 2**20
"""Bytes of rows that are tried and staged together; a server whose statements are shorter gets them in several."""


class PieceLoader(Loader):
    """Inserts rows by statements, and stages rows that wait for a merge as pieces."""

    def __init__(self, target: DatabaseTarget) -> None:
        super().__init__(target)
        self.dialect = row_dialect_for(target)

    def check_table(self, sink: str, schema: pa.Schema | None, path: CommitPath, own: Sequence[str]) -> sa.TableClause:  # noqa: ARG002
        check_own(self.target)
        return check_described(self.target, self.dialect, schema).clause

    def begin_prepared(self, context: WriteContext) -> Writing:
        return InsertWriting(self.target, context)

    def begin_staged(self, context: WriteContext) -> Writing:
        return PieceWriting(self.target, context, self.dialect)

    def move(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        for row in staged:
            self._insert_pieces(connection, row)

    def remove(self, connection: sa.Connection, staged: Sequence[Any]) -> None:
        delete_named(connection, tables_of(self.target).pieces, [row.name for row in staged])

    def _insert_pieces(self, connection: sa.Connection, row: Any) -> None:
        pieces, how = tables_of(self.target).pieces, read_movement(row)
        own, moved, written, digest = pieces.c.name == row.name, 0, 0, hashlib.sha256()
        described = check_usable(self.target, how.target, how.key, connection)
        for number in connection.scalars(sa.select(pieces.c.number).where(own).order_by(pieces.c.number)).all():
            query = sa.select(pieces.c.data).where(own, pieces.c.number == number)
            data = connection.scalar(query) or b""
            digest.update(data)
            try:
                batches = decode_piece(data)
            except (pa.ArrowException, OSError) as error:
                raise ChangedError(f"piece {number} staged under {row.name} is damaged: {text_of(error)}") from error
            for batch in batches:
                plan = make_plan(batch.schema, described, self.dialect, how.key)
                statement = plan.insert(self.dialect, how.key)
                for rows in plan.pieces(batch):
                    options = {"preserve_rowcount": True}
                    written += connection.execute(statement, rows, execution_options=options).rowcount
                moved += batch.num_rows
        if moved != row.row_count:
            raise ChangedError(f"{moved} rows of {row.row_count} are staged under {row.name}: somebody changed them")
        if how.sha256 not in {"", digest.hexdigest()}:
            raise ChangedError(
                f"the rows staged under {row.name} are not those that were decided: somebody changed them"
            )
        if not how.key and written < moved:
            _log.warning("triggers of table %s have left out %d of %d rows", how.target, moved - written, moved)


class InsertWriting(HeldWriting):
    """An attempt that inserts rows into the table itself, in a transaction that ends as a prepared one."""

    def open_writer(self, schema: pa.Schema) -> RowWriter:
        return InsertWriter(self.connection, plan_for(self.target, schema, self.connection), proof=self.target.proof)


class PieceWriting(Writing):
    """An attempt that commits rows as pieces beside the table."""

    def __init__(self, target: DatabaseTarget, context: WriteContext, dialect: RowDialect) -> None:
        self._dialect = dialect
        self._waiting: list[pa.RecordBatch] = []
        self._plan: Plan | None = None
        self._described: DescribedTable | None = None
        self._hash: RowHash | None = None
        self._bytes = 0
        self._pieces = 0
        self._digest = hashlib.sha256()
        self._tries_in_table = False
        super().__init__(target, context)

    def open(self) -> None:
        ledger_tables.note_writer(self.target, self.context.scope)

    def send(self, batch: pa.RecordBatch) -> int:
        """Check every value, collect the rows, and stage a piece when it is large enough."""
        if self._plan is None:
            self._described = existing(self.target, batch.schema)
            self._plan = plan_for(self.target, batch.schema)
            self._tries_in_table = tries_in_table(self.target)
            self._hash = self._plan.new_hash() if self.target.proof else None
        check_same(batch.schema, self._plan.schema)
        for part in pieces(batch, CHUNK_BYTES):
            self._plan.add(self._plan.check(part), self._hash)
            size = size_of(part)
            if self._waiting and self._bytes + size > CHUNK_BYTES:
                self._stage(whole=False)
            self._waiting.append(_plain(part))
            self._bytes += size
        return int(batch.num_rows)

    def make_durable(self) -> Committable:
        self._stage(whole=True)
        handle = staged_handle(self.rows, "", self._movement())
        proof = None if self._hash is None else self._hash.proof()
        return Committable.named(STAGED, self.name, rows=self.rows, proof=proof, handle=handle)

    def undo(self) -> None:
        """Delete the rows that were staged; if that fails, a sweep finds them by the transaction's name."""
        if self._pieces:
            with suppress(OncewardError), transaction(self.target, "cannot discard") as connection:
                for table in (tables_of(self.target).pieces, tables_of(self.target).staged):
                    connection.execute(table.delete().where(table.c.name == str(self.name)))

    def _stage(self, *, whole: bool) -> None:
        staged, pieces = tables_of(self.target).staged, tables_of(self.target).pieces
        own = staged.c.name == str(self.name)
        rows = self.rows if whole else 0
        tried = rows if self._tries_in_table else sum(batch.num_rows for batch in self._waiting)
        what, in_table = f"cannot stage rows of table {self.target.table}", self._tries_in_table
        with transaction(self.target, what, more=tried / SLOWEST, merges=in_table) as connection:
            self._check_table(connection, self.rows)
            if not in_table:
                self._try_rows(connection)
                if whole:
                    self._rehearse()
            elif whole:
                self._try_all_rows(connection)
            encoded = list[bytes]()
            if self._waiting:
                encoded = list(_encoded(self._waiting, self._dialect.longest_value(connection)))
            for data in encoded:
                self._digest.update(data)
            if self._pieces == 0:
                how = {"stage": "", "movement": self._movement()}
                head = {**identity_row(self.name, rows), "whole": int(whole), **how}
                connection.execute(staged.insert(), [head])
            elif connection.scalar(sa.select(staged.c.whole).where(own).with_for_update()) is None:
                raise SqlError(
                    "the rows staged so far were removed: a later start of the pipeline has swept this attempt"
                )
            elif whole:
                values = {"row_count": rows, "whole": 1, "movement": self._movement()}
                connection.execute(staged.update().where(own).values(values))
            for number, data in enumerate(encoded, self._pieces):
                connection.execute(pieces.insert(), [{"name": str(self.name), "number": number, "data": data}])
        self._pieces += max(1, len(encoded))
        self._waiting, self._bytes = [], 0

    def _check_table(self, connection: sa.Connection, rows: int) -> None:
        """Check that the merge could take so many rows now: the table's kind, its keys, rights and numbers."""
        if self._plan is None or self._described is None:
            return
        target, schema, before = self.target, self._plan.schema, self._described
        now = check_usable(target, target.table, target.key, connection)
        plan = make_plan(schema, now, self._dialect, target.key)
        altered = [name for name in schema.names if now.column(name).layout != before.column(name).layout]
        if altered:
            raise RetryableSinkError(f"columns {altered} of table {target.table} were altered while rows were written")
        self._described = now
        if lacking := self._dialect.lacks_numbers(connection, now, schema.names, rows):
            raise ConfigurationError(f"table {target.table} cannot take the rows: {lacking}")
        self._dialect.check_planned(connection, plan.insert(self._dialect, target.key))

    def _movement(self) -> str:
        return Movement(self.target.table, self.target.key, sha256=self._digest.hexdigest()).noted()

    def _try_rows(self, connection: sa.Connection) -> None:
        """Have the database take the waiting rows and forget them; its error tells why it refuses them."""
        if self._plan is None or not self._waiting:
            return
        with self._dialect.trial(connection, self._plan.table.clause) as (place, has_keys):
            statement = self._plan.insert(self._dialect, self.target.key if has_keys else (), place)
            self._insert(connection, statement, self._waiting)

    def _rehearse(self) -> None:
        """Have the table itself take the first waiting row, with all that its triggers reach, and take it back.

        A second time, an upsert updates the row that it has just inserted. This is done on a connection of its own,
        which waits for no lock, because a rollback to a savepoint would keep locks.

        Raises:
            SqlError: The merge would fail whatever its rows are, for example because a trigger's definer is gone.
        """
        if self._plan is None or not (self._waiting and self._described and self._described.has_triggers):
            return
        statement = self._plan.insert(self._dialect, self.target.key)
        what = f"the merge into table {self.target.table} would fail"
        try:
            with (
                transaction(self.target, what, merges=True, undone=True) as connection,
                self._dialect.unwaiting(connection, self.target.access),
            ):
                for _ in range(2 if self.target.key else 1):
                    self._insert(connection, statement, [self._waiting[0].slice(0, 1)])
        except SqlError as error:
            if not error.refuses_rows:
                error.message = f"{error.message}: {error.remedy}"
                raise
        except RetryableSinkError:
            return  # somebody holds a lock

    def _try_all_rows(self, connection: sa.Connection) -> None:
        """Have the table itself take the rows of all pieces, and take them back; see the module's docstring."""
        if self._plan is None:
            return
        pieces = tables_of(self.target).pieces
        query = sa.select(pieces.c.data).where(pieces.c.name == str(self.name))
        statement = self._plan.insert(self._dialect, self.target.key)
        with connection.begin_nested() as trial:
            for number in range(self._pieces):
                data = connection.scalar(query.where(pieces.c.number == number))
                if data is not None:  # otherwise it was swept, which is found when the last piece is staged
                    self._insert(connection, statement, decode_piece(data))
            self._insert(connection, statement, self._waiting)
            trial.rollback()

    def _insert(self, connection: sa.Connection, statement: Insert, batches: Iterable[pa.RecordBatch]) -> None:
        assert self._plan is not None  # noqa: S101 - there are rows
        for batch in batches:
            for rows in self._plan.pieces(batch):
                connection.execute(statement, rows)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without dictionaries and views, of which Arrow would write all values with each slice."""
    columns = [decoded_array(array) for array in batch.columns]
    large = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    columns = [array.cast(large[array.type]) if array.type in large else array for array in columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _encoded(batches: list[pa.RecordBatch], most: int) -> Iterator[bytes]:
    """Yield the rows as IPC streams of at most `most` bytes, or one row."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = buffer.getvalue().to_pybytes()
    if len(data) <= most or sum(batch.num_rows for batch in batches) <= 1:
        yield data
        return
    if len(batches) == 1:
        half = batches[0].num_rows // 2
        parts = [[batches[0].slice(0, half)], [batches[0].slice(half)]]
    else:
        parts = [batches[: len(batches) // 2], batches[len(batches) // 2 :]]
    for part in parts:
        yield from _encoded(part, most)


def decode_piece(data: bytes) -> list[pa.RecordBatch]:
    """Return the batches of a piece, after a check: Arrow trusts the offsets that it reads."""
    with pa.ipc.open_stream(data) as stream:
        batches = list(stream)
    for batch in batches:
        batch.validate(full=True)
    return batches
