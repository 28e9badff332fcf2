"""MariaDB: XA transactions, through pymysql.

Observations on MariaDB 10.11, and what follows from them:

1. A prepared transaction belongs to its session until that ends. Until then, XA COMMIT by any other session answers
   "unknown XID", although XA RECOVER lists the transaction. So a writer closes its connection after XA PREPARE, and a
   transaction that is unknown while it is listed is busy.
2. If two sessions commit at the same time, the loser's answer is "unknown XID", too, at a moment when the transaction
   may be neither listed nor visible. So the ledger is then read with a lock, which waits for a transaction that is just
   ending.
3. Prepared transactions survive SIGKILL of the server, and the end of their session (since 10.5).

An XA identifier has less room than a transaction's name: 64 bytes for each of its two parts. The first part (gtrid) is
a digest of the pipeline's and the sink's name, the second (bqual) the rest of the name as it is. A search for the
transactions of a pipeline compares the whole first part with that of exactly these names (invariant 9), puts the whole
name together again, and parses it with core/names.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql import insert

from onceward.core.contract.names import FORMAT
from onceward.core.errors import RetryableSinkError

from .conversions import is_text, no_blank_at_the_end
from .dialect import HOW_TO_STAGE, RowDialect, ServerFacts, Trial, TwoPhase, TwoPhaseAnswer
from .failures import code, may_pass, words
from .mariadb_types import TYPES
from .target import TableName, own_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from sqlalchemy.sql.dml import Insert

    from onceward.core.contract.names import Scope, TransactionName

    from .conversions import Conversion
    from .described_table import Column, DescribedTable
    from .target import DatabaseAccess

_NO_SUCH_TABLE: Final = (1146, 1049)
"""Or no such database."""
_UNKNOWN_XID: Final = 1397
_ROLLED_BACK: Final = frozenset({1402, 1613, 1614})
"""The server has rolled the transaction back: by itself, after its time limit, or because of a deadlock."""
_DETACHES: Final = (10, 5)
_UNLIMITED: Final = 1 << 31
_NO_LIMIT: Final = (1 << 64) - 1
_CONNECT_SECONDS: Final = 10
_ORPHANED_SECONDS: Final = 60
"""Seconds after which the server itself ends a session that has prepared, and whose connection was cut."""
_SEMI_SYNCHRONOUS: Final = tuple(f"rpl_semi_sync_master_{setting}" for setting in ("enabled", "timeout", "wait_point"))
_FOR_EVER_MS: Final = 24 * 3_600_000
"""A day: if a commit waits for longer, a person has noticed."""
_FORMAT: Final = sa.text("SELECT @@SESSION.binlog_format")
_TRIAL: Final = "onceward_trial"
_CHANGES_ROWS: Final = sa.text(
    "SELECT count(*) FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, database())"
    " AND event_object_table = :table AND event_manipulation = 'INSERT' AND action_timing = 'BEFORE'"
)
_NOT_ALL_COLUMNS: Final = 1136
"""A row that lacks columns, which only views must have all of."""
_KIND: Final = sa.text(
    "SELECT table_type, engine FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :table"
)
_INNODB: Final = "InnoDB"
_SESSION: Final = sa.text("SELECT 1 FROM information_schema.processlist WHERE id = :session")
"""A session of the role's own, which it sees without further rights. One that ends is listed until nothing is left."""
_END_SECONDS: Final = 30.0
_END_STEP: Final = 0.001
"""Seconds between two questions whether a session has ended."""
_LEAST_PACKET: Final = 1 << 18
"""Bytes that are enough for the longest of onceward's own statements."""
_TRIGGERS: Final = sa.text(
    "SELECT trigger_name, event_object_schema, event_object_table, action_statement, definer, created"
    " FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, database())"
    " AND event_object_table = :table ORDER BY 1"
)
"""To roles without the right TRIGGER on the table, the server shows its triggers without their statements."""
_TRIGGER_BODIES: Final = sa.text(
    "SELECT event_object_schema, event_object_table, action_statement FROM information_schema.triggers"
)
_BODIES: Final = sa.text(
    "SELECT routine_schema, routine_name, routine_definition FROM information_schema.routines"
    " UNION ALL SELECT table_schema, table_name, nullif(view_definition, '') FROM information_schema.views"
    " WHERE table_schema NOT IN ('sys', 'information_schema', 'performance_schema', 'mysql')"
)
"""Routines and views; the definitions of those that the role may not read are null."""
_TABLES: Final = sa.text(
    "SELECT table_schema, table_name, engine IN (SELECT engine FROM information_schema.engines"
    " WHERE transactions = 'YES') FROM information_schema.tables WHERE table_type LIKE 'BASE TABLE%'"
    " AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')"
)
_NAME: Final = r"((?:`[^`]+`|[\w$]+)(?:\s*\.\s*(?:`[^`]+`|[\w$]+))?)"
_WRITTEN: Final = re.compile(
    r"(?i)\b(?:(?:INSERT|REPLACE)\s+(?:(?:LOW_PRIORITY|DELAYED|HIGH_PRIORITY|IGNORE)\s+)*(?:INTO\s+)?"
    r"|(?<!KEY\s)(?<!FOR\s)UPDATE\s+(?:(?:LOW_PRIORITY|IGNORE)\s+)*"
    rf"|DELETE\s+(?:(?:LOW_PRIORITY|QUICK|IGNORE)\s+)*FROM\s+|CALL\s+){_NAME}"
)
"""What a statement of a trigger or routine names as written, or calls."""
_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")
_WORDS: Final = re.compile(r"`([^`]+)`|([\w$]+)")
_UNIQUES: Final = sa.text(
    "SELECT s.index_name, s.column_name, s.sub_part, c.collation_name FROM information_schema.statistics AS s"
    " JOIN information_schema.columns AS c USING (table_schema, table_name, column_name)"
    " WHERE s.table_schema = coalesce(:schema, database()) AND s.table_name = :table AND NOT s.non_unique"
)
_COLUMNS: Final = sa.text(
    "SELECT column_name, column_type, column_default FROM information_schema.columns"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :table"
)
_COUNTERS: Final = sa.text(
    "SELECT auto_increment, @@auto_increment_increment FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :table"
)
_UNKNOWN: Final = "no data is written into columns of this type; change the column, for example to VARCHAR"
_BITS: Final = {mysql.TINYINT: 8, mysql.SMALLINT: 16, mysql.MEDIUMINT: 24, mysql.BIGINT: 64, mysql.INTEGER: 32}
_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO"
"""Makes values that do not fit errors, whatever the server's default is, and keeps 0 as an id."""
CHARSET: Final = "utf8mb4"
"""Arrow's text is UTF-8, and is sent as it is."""
_HEAD: Final = 4096
"""Bytes of a statement that are left for all but one value."""
_FORMAT_ID: Final = 0x0CEBA2D
_PART_BYTES: Final = 64
_DIGEST: Final = 48
"""Hex digits: 192 bits, which no two names ever share."""
_SHOWN: Final = re.compile(r"X'((?:[0-9a-fA-F]{2})*)',X'((?:[0-9a-fA-F]{2})*)',(\d+)")


class Xid(NamedTuple):
    """An XA identifier of ours: both parts are printable ASCII without quotes."""

    gtrid: str
    bqual: str

    @classmethod
    def of(cls, name: TransactionName) -> Xid:
        """Return the identifier of a transaction's name.

        Raises:
            ValueError: The numbers in the name have more than about forty digits together.
        """
        bqual = str(name).removeprefix(f"{name.scope.head}:")
        if len(bqual) > _PART_BYTES:
            raise ValueError(f"{name} needs {len(bqual)} bytes as an XA branch qualifier, which has {_PART_BYTES}")
        return cls(gtrid_of(name.scope.pipeline, name.scope.sink), bqual)

    def __str__(self) -> str:
        return f"'{self.gtrid}','{self.bqual}',{_FORMAT_ID}"


def gtrid_of(pipeline: str, sink: str) -> str:
    """Return the first part of all identifiers of a pipeline's sink."""
    return f"{FORMAT}:{hashlib.sha256(f'{pipeline}:{sink}'.encode()).hexdigest()[:_DIGEST]}"


def read_xid(shown: str, pipeline: str, sink: str) -> TransactionName | None:
    """Return the name behind an identifier that `XA RECOVER FORMAT='SQL'` shows; None if it carries other names."""
    match = _SHOWN.fullmatch(shown)
    if match is None or int(match[3]) != _FORMAT_ID:
        return None
    gtrid, bqual = bytes.fromhex(match[1]), bytes.fromhex(match[2])
    if gtrid != gtrid_of(pipeline, sink).encode() or not bqual.isascii():
        return None
    return own_name(f"{FORMAT}:{pipeline}:{sink}:{bqual.decode()}", pipeline, sink)


class XaTransactions:
    """MariaDB's XA transactions."""

    def begin(
        self,
        connection: sa.Connection,
        access: DatabaseAccess,  # noqa: ARG002 - signature
        name: TransactionName,
        question: sa.Select[Any],
        of: Scope,
    ) -> Sequence[Any] | None:
        # The lock timeout is the session's.
        connection.exec_driver_sql(f"XA START {Xid.of(name)}")
        try:
            return connection.execute(question, of._asdict()).one()
        except exc.DBAPIError as error:
            if code(error) not in _NO_SUCH_TABLE:
                raise
            return None

    def prepare(self, connection: sa.Connection, name: TransactionName, insert: Insert, row: dict[str, Any]) -> None:
        connection.execute(insert, row)
        connection.exec_driver_sql(f"SET SESSION wait_timeout = {_ORPHANED_SECONDS}")
        connection.exec_driver_sql(f"XA END {Xid.of(name)}")
        connection.exec_driver_sql(f"XA PREPARE {Xid.of(name)}")
        session, engine = getattr(connection.connection.driver_connection, "onceward_session", 0), connection.engine
        connection.invalidate()  # before the session is closed nobody else can end the transaction
        connection.close()
        _await_end(engine, session)

    def unconfirmed(self, connection: sa.Connection) -> str:  # noqa: ARG002 - a commit cannot be cut short there
        return ""

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        rows = connection.exec_driver_sql("XA RECOVER FORMAT='SQL'").all()
        names = [read_xid(_text(row[3]), pipeline, sink) for row in rows]
        return [name for name in names if name is not None]

    def scopes(self, connection: sa.Connection) -> set[Scope]:  # noqa: ARG002 - signature
        """Return nothing: identifiers contain only a digest of the names."""
        return set()

    def end(self, connection: sa.Connection, command: str, name: TransactionName) -> tuple[TwoPhaseAnswer, str]:
        try:
            connection.exec_driver_sql(f"XA {command} {Xid.of(name)}")
        except exc.DBAPIError as error:
            number = code(error)
            if number in _ROLLED_BACK:
                return TwoPhaseAnswer.GONE, words(error)
            if number != _UNKNOWN_XID:
                raise
            if name in self.waiting(connection, name.scope.pipeline, name.scope.sink):
                return (
                    TwoPhaseAnswer.BUSY,
                    f"{words(error)}; it is prepared, and held by the session that wrote or ends it",
                )
            return TwoPhaseAnswer.GONE, words(error)
        return TwoPhaseAnswer.DONE, ""


def _await_end(engine: sa.Engine, session: int) -> None:
    """Wait until a session is gone: while it ends, the server answers XA COMMIT of its transaction, and does nothing.

    Raises:
        RetryableSinkError: It is still there.
    """
    until = time.monotonic() + _END_SECONDS
    with engine.connect() as other:
        while other.execute(_SESSION, {"session": session}).first() is not None:
            if time.monotonic() > until:
                raise RetryableSinkError(
                    f"session {session}, which prepared the rows, has not ended after {_END_SECONDS:.0f} seconds, and "
                    "before that nobody can commit them"
                )
            time.sleep(_END_STEP)


def _hold(connection: sa.Connection, quoted: str) -> None:
    """Lock a table's definition until the transaction ends; a view, which is refused anyway, is not locked."""
    try:
        connection.exec_driver_sql(f"EXPLAIN INSERT INTO {quoted} () VALUES ()").close()  # noqa: S608 - a quoted name
    except exc.DBAPIError as error:
        if code(error) != _NOT_ALL_COLUMNS:
            raise


def _of_replication(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings of semi-synchronous replication that may acknowledge, or show, rows that no replica has."""
    enabled, patience, point = (variables.get(name, "") for name in _SEMI_SYNCHRONOUS)
    if not _on(enabled):
        return
    if int(patience or 0) < _FOR_EVER_MS:
        yield (
            f"semi-synchronous replication stops waiting after {patience} ms and acknowledges commits that no replica "
            "has: a failover loses them. Set rpl_semi_sync_master_timeout to its maximum"
        )
    if point.upper() == "AFTER_COMMIT":
        yield (
            "rpl_semi_sync_master_wait_point is AFTER_COMMIT: rows are visible before a replica has them, and a "
            "repeated commit takes them for safe. Set it to AFTER_SYNC"
        )


class MariaDb(RowDialect):
    """MariaDB, through PyMySQL, which has its own time limits."""

    types = TYPES
    two_phase: TwoPhase | None = XaTransactions()

    def engine_arguments(self, access: DatabaseAccess) -> dict[str, Any]:
        """Return time limits for the driver, except those that the URL sets itself."""
        answer = access.answer_within + _lock_seconds(access)
        from .mariadb_session import Cursor  # noqa: PLC0415 - an extra

        arguments = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": answer, "write_timeout": answer}
        own = {key: value for key, value in arguments.items() if key not in access.url.parsed.query}
        connect = {**own, "cursorclass": Cursor, "charset": CHARSET}
        return {"isolation_level": "READ COMMITTED", "pool_pre_ping": True, "connect_args": connect}

    def prepare_engine(self, engine: sa.Engine, access: DatabaseAccess) -> None:
        """Set strict values, UTC and time limits for locks in each connection, after the URL's own init_command."""
        seconds = _lock_seconds(access)
        settings = {
            "sql_mode": f"'{_MODE}'",
            "innodb_lock_wait_timeout": seconds,
            "lock_wait_timeout": seconds,
            "time_zone": "'+00:00'",
            "sql_select_limit": _NO_LIMIT,
            "sql_notes": 1,
        }
        command = "SET SESSION " + ", ".join(f"{key} = {value}" for key, value in settings.items())

        def set_up(connection: Any, _: object) -> None:
            connection.set_character_set(CHARSET)
            with connection.cursor() as cursor:
                cursor.execute(command)
                cursor.execute("SELECT @@max_allowed_packet, CONNECTION_ID()")
                connection.onceward_max_packet, connection.onceward_session = cursor.fetchone()

        event.listen(engine, "connect", set_up)

    def read_server(self, connection: sa.Connection) -> ServerFacts:
        if not getattr(connection.dialect, "is_mariadb", False):
            return ServerFacts(unusable="the server is MySQL: only MariaDB was tested, so MySQL is refused")
        names = ("read_only", "wsrep_on", "innodb_flush_log_at_trx_commit", "max_allowed_packet", *_SEMI_SYNCHRONOUS)
        query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {(*names, 'log_bin', 'sync_binlog')}"
        variables = {str(key).lower(): str(value) for key, value in connection.exec_driver_sql(query)}
        unusable, packet = "", int(variables.get("max_allowed_packet", _LEAST_PACKET))
        if _on(variables.get("read_only")):
            unusable = "the server is read-only: name the primary in the url"
        elif packet < _LEAST_PACKET:
            unusable = f"its max_allowed_packet is {packet}: set it to {_LEAST_PACKET} or more"
        elif _on(variables.get("log_bin")) and connection.scalar(_FORMAT) == "STATEMENT":
            unusable = "its binlog_format is STATEMENT, with which it refuses rows in READ COMMITTED: set it to MIXED"
        why = ""
        if _on(variables.get("wsrep_on")):
            why = f"Galera has no XA transactions: name a server without it, {HOW_TO_STAGE}"
        elif (connection.dialect.server_version_info or ())[:2] < _DETACHES:
            why = f"before MariaDB 10.5 a prepared transaction ends with its session: upgrade, {HOW_TO_STAGE}"
        flush = variables.get("innodb_flush_log_at_trx_commit", "1")
        warnings = list(_of_replication(variables))
        if flush != "1":
            lost = "a crash of the machine may lose committed data"
            warnings.insert(0, f"innodb_flush_log_at_trx_commit is {flush}: {lost}")
        sync = variables.get("sync_binlog", "1")
        if _on(variables.get("log_bin")) and sync != "1":  # what the log lacks after a crash is rolled back
            warnings.append(
                f"sync_binlog is {sync}: a crash of the machine may roll back transactions that were committed or "
                "prepared, because the binary log lacks them. Set it to 1"
            )
        return ServerFacts(unusable, 0 if why else _UNLIMITED, why, tuple(warnings))

    def table_version(self, connection: sa.Connection, name: TableName, *, held: bool) -> Hashable:
        """Return the statement that would create the table, and its triggers; None if there is no such table.

        Only a statement that writes locks the definition until the transaction ends, and EXPLAIN of it does, too. SHOW
        CREATE TABLE does not.
        """
        quoted = connection.dialect.identifier_preparer.format_table(sa.table(name.table, schema=name.schema))
        try:
            if held:
                _hold(connection, quoted)
            created = connection.exec_driver_sql(f"SHOW CREATE TABLE {quoted}").one()[1]
        except exc.DBAPIError as error:
            if code(error) not in _NO_SUCH_TABLE:
                raise
            return None
        triggers = connection.execute(_TRIGGERS, {"schema": name.schema, "table": name.table}).all()
        return _COUNTER.sub("", str(created)), tuple(map(tuple, triggers))

    def key_conversion(self, step: Conversion, column: Column) -> Conversion:
        """Refuse blanks at the end: collations ignore them in keys, unless their names contain nopad."""
        if "nopad" in column.collation or not is_text(step.wire):
            return step
        why = f"the collation {column.collation} ignores it in keys; use one with NO PAD, such as utf8mb4_nopad_bin"
        return replace(step, checks=(*step.checks, no_blank_at_the_end(why)))

    def longest_value(self, connection: sa.Connection) -> int:
        """Return the number of bytes that fit into one packet if each of them is escaped."""
        lent: Any = connection.connection.driver_connection
        return (int(lent.onceward_max_packet) - _HEAD) // 2

    def behind(self, connection: sa.Connection) -> str:
        read_only = connection.exec_driver_sql("SELECT @@global.read_only").scalar()
        return "the server is read-only, perhaps a replica whose ledger lags" if _on(str(read_only)) else ""

    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        """Return an INSERT … ON DUPLICATE KEY UPDATE, which sets the key to itself if there is no other column."""
        statement = insert(table).values(values)
        changed = [name for name in values if name not in key] or list(key[:1])
        # Not `inserted`, which doubles a % in a name twice (SQLAlchemy 2.0).
        return statement.on_duplicate_key_update({name: sa.func.values(sa.column(name)) for name in changed})

    def column_name(self, reflected: str) -> str:
        """Return the name with single backticks: SQLAlchemy reads it from SHOW CREATE TABLE, where each is doubled."""
        return reflected.replace("``", "`")

    def describe(self, connection: sa.Connection, name: TableName) -> DescribedTable | None:
        """Read the description of a table, with the collations of the columns of unique keys.

        A key over the first characters of a column counts as one over `column(3)`, because it takes different values
        for the same.
        """
        table, where = self.reflect(connection, name), name._asdict()
        if table is None:
            return None
        indexes, collations = dict[str, set[str]](), dict[str, str]()
        for index, column, prefix, collation in connection.execute(_UNIQUES, where):
            indexes.setdefault(index, set()).add(column if prefix is None else f"{column}({prefix})")
            collations[column] = collation or ""
        more = {row.column_name: row for row in connection.execute(_COLUMNS, where)}
        columns = tuple(_complete(c, more.get(c.name), collations.get(c.name)) for c in table.columns)
        uniques = sorted({frozenset(names) for names in indexes.values()}, key=sorted)
        triggers = connection.execute(_TRIGGERS, where).first()
        return replace(table, columns=columns, uniques=tuple(uniques), has_triggers=triggers is not None)

    def lacks_transactions(self, connection: sa.Connection, name: TableName) -> str:
        engine = connection.execute(_KIND, name._asdict()).scalars(1).first() or _INNODB
        if engine == _INNODB:
            return ""
        return f"has the storage engine {engine}, which has no transactions: ALTER TABLE … ENGINE=InnoDB"

    def refuses(self, connection: sa.Connection, table: DescribedTable) -> str:
        """Return why it is refused: it is a sequence, or its triggers reach tables without transactions or unknown."""
        where = {"schema": table.schema, "table": table.name}
        if connection.scalar(_KIND, where) == "SEQUENCE":
            return "it is a sequence, whose only row an INSERT replaces"
        triggers = connection.execute(_TRIGGERS, where).all()
        if not triggers:
            return ""
        unsafe, unseen = _reached(connection, table.name)
        hidden = [row.trigger_name for row in triggers if row.action_statement is None]
        if hidden:
            return (
                f"this role cannot read its triggers {', '.join(hidden)}, which may write where there are no "
                "transactions: GRANT TRIGGER on it"
            )
        if unsafe:
            return (
                f"its triggers name {', '.join(unsafe)}, whose storage engine has no transactions, so what they write "
                "there would stay when an epoch is aborted: ALTER TABLE … ENGINE=InnoDB"
            )
        if unseen:
            return (
                f"its triggers write into, or call, {', '.join(unseen)}, which this role cannot read, and which may "
                "be without transactions: GRANT SELECT on them (of a routine: SELECT on mysql.proc)"
            )
        return ""

    def lacks_numbers(self, connection: sa.Connection, table: DescribedTable, columns: Sequence[str], rows: int) -> str:
        """Return so if AUTO_INCREMENT would come to the type's largest number, at which the counter stays."""
        numbered = [c for c in table.columns if c.is_numbered and c.name not in columns]
        bits = next((bits for c in numbered for kind, bits in _BITS.items() if isinstance(c.type, kind)), None)
        if bits is None:
            return ""
        number, step = connection.execute(_COUNTERS, {"schema": table.schema, "table": table.name}).one()
        most = (1 << (bits if getattr(numbered[0].type, "unsigned", False) else bits - 1)) - 1
        if (number or 0) + (rows - 1) * step < most:
            return ""
        name = numbered[0].name
        return f"AUTO_INCREMENT of column {name!r} ends before it has numbered {rows} rows: give it a larger type"

    @contextmanager
    def unwaiting(self, connection: sa.Connection, access: DatabaseAccess) -> Iterator[None]:
        limits = "SET SESSION innodb_lock_wait_timeout = {0}, lock_wait_timeout = {0}"
        connection.exec_driver_sql(limits.format(0))
        try:
            yield
        finally:
            connection.exec_driver_sql(limits.format(_lock_seconds(access)))

    @contextmanager
    def trial(self, connection: sa.Connection, table: sa.TableClause) -> Iterator[Trial]:
        """Open a block with a temporary table that has the types, defaults, checks and indexes, but no foreign keys."""
        place = TableName(table.schema, _TRIAL)
        preparer = connection.dialect.identifier_preparer
        name = preparer.format_table(sa.table(place.table, schema=place.schema))
        model = preparer.format_table(table)
        create, drop = f"CREATE TEMPORARY TABLE {name}", f"DROP TEMPORARY TABLE IF EXISTS {name}"
        alike = not connection.scalar(_CHANGES_ROWS, {"table": table.name, "schema": table.schema})
        connection.exec_driver_sql(drop)  # one may be left: the end of a transaction does not undo it
        try:
            if alike:
                connection.exec_driver_sql(f"{create} LIKE {model}")
        except exc.DBAPIError as error:
            if may_pass(error):
                raise
            alike = False  # with partitions, full-text indexes or versions it cannot be temporary
        if not alike:
            columns = ", ".join(f"model.{preparer.quote_identifier(column.name)}" for column in table.columns)
            connection.exec_driver_sql(
                f"{create} AS SELECT {columns} FROM (SELECT 1) AS one LEFT JOIN {model} AS model ON 1 = 0 LIMIT 0"  # noqa: S608 - quoted names
            )
        try:
            yield Trial(place, has_keys=alike)
        finally:
            with suppress(exc.SQLAlchemyError):
                connection.exec_driver_sql(drop)

    def check_key(self, uniques: Sequence[frozenset[str]], key: Sequence[str]) -> str:
        others = sorted(sorted(unique) for unique in set(uniques) - {frozenset(key)})
        refused = super().check_key(uniques, key)
        if others and not refused:
            refused = (
                f"it has other unique keys ({others}), and MariaDB's ON DUPLICATE KEY UPDATE would change the row that "
                "any of them finds"
            )
        return refused


def _complete(column: Column, row: Any, collation: str | None) -> Column:
    """Add to a column what SQLAlchemy does not read: its collation, defaults that are expressions, unknown types."""
    column = replace(column, collation=collation or column.collation)
    if row is None:
        return column
    filled = column.has_default or row.column_default not in (None, "NULL")
    if not isinstance(column.type, sa.types.NullType):
        return replace(column, has_default=filled)
    return replace(column, has_default=filled, declared=row.column_type.upper(), unwritable=_UNKNOWN)


def _reached(connection: sa.Connection, table: str) -> tuple[list[str], list[str]]:
    """Return what the triggers of a table reach: tables without transactions, and what this role cannot read.

    All words of a statement count as names, so a table may be found that is not meant. Names are compared in lower
    case.
    """
    bodies: dict[str, list[tuple[str, str | None]]] = {}
    for owner, name, body in (*connection.execute(_TRIGGER_BODIES), *connection.execute(_BODIES)):
        bodies.setdefault(str(name).lower(), []).append((str(owner).lower(), body))
    tables = {(str(s).lower(), str(t).lower()): bool(safe) for s, t, safe in connection.execute(_TABLES)}
    unsafe, unseen, names, waiting = set[str](), set[str](), set[str](), [table.lower()]
    while waiting:
        name = waiting.pop()
        for owner, body in bodies.get(name, ()):
            if body is None:
                unseen.add(name)
                continue
            new = {(quoted or plain).lower() for quoted, plain in _WORDS.findall(body)} - names
            names |= new
            waiting += new
            for written in _WRITTEN.findall(body):
                parts = [(quoted or plain).lower() for quoted, plain in _WORDS.findall(written)]
                place = (parts[0] if len(parts) > 1 else owner, parts[-1])
                if place not in tables and all(place[0] != of for of, _ in bodies.get(place[1], ())):
                    unseen.add(".".join(parts))
    unsafe = {name for (_, name), safe in tables.items() if not safe and name in names}
    return sorted(unsafe), sorted(unseen)


def _lock_seconds(access: DatabaseAccess) -> int:
    return max(1, math.ceil(access.lock_timeout))


def _on(value: str | None) -> bool:
    return value is not None and value.upper() not in ("", "0", "OFF", "NO_LOCK")


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
