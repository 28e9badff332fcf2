"""RedisSink: an epoch's rows into Redis or Valkey, exactly once, as entries of streams, hashes or elements of lists.

Rows wait in a write-ahead log for their decision; then each delivery is one script, which writes rows and marker in one
step, and nothing if the marker is there (connectors/redis/script.py has the argument). It is acknowledged once it is in
the server's append-only file.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from onceward.core.errors import ConfigurationError, DataLossError, SinkError
from onceward.core.kit.options import arguments
from onceward.core.names import NOTHING, TransactionName, other_log, outdated_log, parse_transaction_name
from onceward.core.sink import Guarantee
from onceward.core.transaction import Progress
from onceward.sinks.folder_sink import newest_of
from onceward.sinks.folders import FolderClaims
from onceward.sinks.write_ahead import ROWS_PER_SEND, Attempt, Segment, WriteAheadLogSink

from .client import check_facts, clients, evaluate, read_facts, translated
from .delivery import GO_ON, Delivery, Loss, deliver
from .forms import FORMS, KeyTemplate, check_form, written
from .script import CLAIM, PRUNE, RELEASE, marker_key
from .settings import RedisSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.transaction import Committable
    from onceward.sinks.write_ahead import Identity

_log = logging.getLogger("onceward.redis")


class RedisSink(WriteAheadLogSink):
    """Writes rows into one Redis or Valkey server.

    Args:
        name: Unique in its pipeline, and part of every transaction's name: it must not change between runs.
        directory: See WriteAheadLogSink.
        url: As redis-py takes it: `redis://host:6379/0`, `rediss://…` (TLS; `?ssl_ca_certs=file`) or `unix:///socket`.
        key: Key of each row, with columns in braces: `total:{user}`, or the same for all rows: `events`.
        form: What a row becomes: "stream", an entry of one (XADD); "hash", the fields of one (HSET; a null deletes its
            field); "list", a JSON object at the end of one (RPUSH).
        maxlen: About how many entries to keep of a stream; older ones are deleted. None: all.
        durable: Wait until each delivery is in the append-only file (WAITAOF), and refuse a server that has none or
            evicts keys. False: a server that crashes may lose rows, and then it is at most once.
        replicas: How many replicas must have it in their append-only files too.
        rows_per_send: Rows of one delivery at most; no other client is served while they are written.
        username: Of the server's access control list, if it is not in the URL.
        password: If it is not in the URL.
        timeout: Seconds to wait for an answer.
        connect_timeout: Seconds to wait for a connection.
        select: SQL expressions that make this sink's columns out of the pipeline's; default: all columns.
        where: SQL condition; this sink gets only the rows for which it is true; default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    remembers = True

    def __init__(
        self,
        name: str,
        directory: str | Path,
        *,
        url: str,
        key: str,
        form: str = "stream",
        maxlen: int | None = None,
        durable: bool = True,
        replicas: int = 0,
        rows_per_send: int = ROWS_PER_SEND,
        username: str | None = None,
        password: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(name, directory, rows_per_send=rows_per_send, select=select, where=where)
        self.settings = RedisSettings(url, username, password, timeout, connect_timeout)
        if form not in FORMS:
            raise ConfigurationError(f"form {form!r} is unknown: give one of {', '.join(FORMS)}")
        if maxlen is not None and (form != "stream" or maxlen < 1):
            raise ConfigurationError(f"maxlen={maxlen} with form {form!r}: it is for streams, and 1 or more")
        if replicas < 0 or (replicas and not durable):
            raise ConfigurationError(
                f"replicas={replicas} with durable={durable}: it is 0 or more, and for durable=True"
            )
        self.form = form
        self.key = KeyTemplate(key)
        self.maxlen = maxlen
        self.durable = durable
        self.replicas = replicas

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options: the arguments above by name, in any case.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        return cls(**arguments(cls, {"name": "redis", **options}))

    def __repr__(self) -> str:
        what = f"url={self.settings.shown!r}, key={self.key.text!r}, form={self.form!r}"
        return f"RedisSink({self.name!r}, {self.directory!r}, {what})"

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once, or at-most-once if the server may lose what it acknowledges."""
        return Guarantee.EXACTLY_ONCE if self.durable else Guarantee.AT_MOST_ONCE

    def validate_complete_mode(self) -> None:
        """Complete mode fits hashes only."""
        if self.form != "hash":
            raise ConfigurationError(
                f"output mode complete writes the whole result at each epoch, which would append every row to the "
                f"{self.form} again: use form 'hash'",
                sink=self.name,
            )

    def validate(self, schema: pa.Schema) -> None:
        """Check the columns, and that the server keeps what it acknowledges.

        Raises:
            ConfigurationError: The server cannot do it: a cluster, a replica, no append-only file, evicted keys.
            SchemaError: A column is missing, or has no text.
            RetryableSinkError: The server does not answer.
            SinkError: It refuses this user.
        """
        check_form(self.name, self.form, self.key, schema, self.rows_per_send)
        facts = read_facts(self.settings)
        for warning in check_facts(facts, self.settings.shown, durable=self.durable, replicas=self.replicas):
            _log.warning("sink %s: %s", self.name, warning)

    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        """Append a batch, if it can be written: after the decision it would be too late to refuse it."""
        check_form(self.name, self.form, self.key, batch.schema, self.rows_per_send)
        written(self.name, self.form, self.key, batch)
        super().write(transaction, batch)

    def send(self, rows: pa.RecordBatch, identity: Identity) -> None:
        """Write rows and marker; see WriteAheadLogSink."""
        self.deliver(rows, Attempt(identity, {}, again=True))

    def deliver(self, rows: pa.RecordBatch, attempt: Attempt) -> None:
        """Write rows and marker. A server that has lost its marker is an error, or with durable=False a warning."""
        identity = attempt.identity
        name = _parsed(identity.transaction)
        found = written(self.name, self.form, self.key, rows, self.maxlen)
        delivery = Delivery(name, identity.first, self.form, found, self._after_a_loss(attempt))
        deliver(self.settings, delivery, durable=self.durable, replicas=self.replicas)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """Segments that are not sent. At each start and now and then: so this is where a lost marker is looked for.

        Raises:
            DataLossError: The server has lost it, before anything more is decided for it.
        """
        with suppress(SinkError):  # what it cannot answer now, it answers at the next delivery
            self._check_marker(scope, self._known(scope))
        return super().lingering(scope)

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        """Look whose the names are, and how far their log had come, in the folder and in the server.

        Raises:
            EpochConflictError: They are another decision log's, or this one is an outdated copy.
        """
        super().check_claim(scope, newest)
        known = self._known(scope)
        if known not in (None, scope.log.encode()):
            raise other_log(scope, str(known, "utf-8"), self.settings.shown)
        reached = self._reached(scope) if known is not None else NOTHING
        if reached > newest:
            raise outdated_log(scope, reached, newest, self.settings.shown)

    def claim(self, scope: Scope) -> None:
        """Note the decision log that owns the names in the server, then in the folder.

        Raises:
            EpochConflictError: Another one owns them.
            DataLossError: The folder knows the log, and the server does not: it has lost data, or is another one. With
                durable=False the next delivery makes the marker again.
        """
        new = FolderClaims(self._place).known(scope) != scope.log
        known = self._evaluate(CLAIM, scope) if new else self._known(scope)
        self._check_marker(scope, known)
        if known not in (None, scope.log.encode()):
            raise other_log(scope, str(known, "utf-8"), self.settings.shown)
        super().claim(scope)

    def _check_marker(self, scope: Scope, known: bytes | None) -> None:
        if known is None and self.durable and FolderClaims(self._place).known(scope) == scope.log:
            raise DataLossError(
                f"{self.settings.shown} knows nothing of this pipeline and sink, though {self.directory} does. {GO_ON}",
                pipeline=scope.pipeline,
                sink=scope.sink,
            )

    def release(self, scope: Scope) -> None:
        """Forget, in the server and in the folder, other decision logs and how far this one had come."""
        if self._known(scope) is None:
            FolderClaims(self._place).release(scope, own=True)
        self._evaluate(RELEASE, scope)
        super().release(scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Delete what says that transactions of older epochs are written."""
        super().completed(scope, epoch)
        written, released = self._written(scope)
        ended = [name for name in (*written, *released) if name.epoch < epoch]
        if ended:
            floor = newest_of(name for name in written if name.epoch < epoch)
            self._evaluate(PRUNE, scope, *floor, *map(str, ended))

    def _reached(self, scope: Scope) -> Progress:
        """How far the log had come by what the server knows: the floor stands for what is deleted."""
        with translated(self.settings, "cannot read the marker"):
            ask = clients.get(self.settings).execute_command
            start, epoch = (ask("HGET", marker_key(scope), field) for field in ("floor:start", "floor:epoch"))
        floor = Progress(int(start), int(epoch)) if start is not None and epoch is not None else NOTHING
        return max(floor, newest_of(self._written(scope)[0]))

    def _written(self, scope: Scope) -> tuple[list[TransactionName], list[TransactionName]]:
        """Transactions whose rows the marker counts: since the newest rewind, and from before."""
        with translated(self.settings, "cannot read the marker"):
            ask = clients.get(self.settings).execute_command
            fields, before = ask("HKEYS", marker_key(scope)), ask("HGET", marker_key(scope), "released")
        released = set((before or b"").decode().split())
        names = [parse_transaction_name(field.decode()) for field in fields]
        mine = [name for name in names if name is not None and name.scope == scope]
        return [n for n in mine if str(n) not in released], [n for n in mine if str(n) in released]

    def _after_a_loss(self, attempt: Attempt) -> Loss:
        """Only a server that evicts keys loses a marker and keeps the rows."""
        if self.durable:
            return Loss.LOUD
        return Loss.AGAIN if attempt.again and read_facts(self.settings).evicts else Loss.FIRST

    def _known(self, scope: Scope) -> bytes | None:
        """The decision log that the marker names, if there is a marker."""
        with translated(self.settings, "cannot read the marker"):
            found: bytes | None = clients.get(self.settings).execute_command("HGET", marker_key(scope), "log")
        return found

    def _evaluate(self, script: str, scope: Scope, *arguments: object) -> bytes | None:
        what = f"cannot change the marker of sink {self.name}"
        found: bytes | None = evaluate(self.settings, what, script, [marker_key(scope)], [scope.log, *arguments])
        return found


def _parsed(transaction: str) -> TransactionName:
    name = parse_transaction_name(transaction)
    if name is None:
        raise SinkError(f"{transaction!r} is no name of a transaction")
    return name
