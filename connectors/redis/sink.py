"""RedisSink: an epoch's rows into Redis or Valkey, exactly once, as entries of streams, hashes or elements of lists.

Rows wait in a write-ahead log for their decision; then each delivery is one script, which writes rows and marker in one
step, and nothing if the marker is there (connectors/redis/script.py has the argument). It is acknowledged once it is in
the server's append-only file.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceward.core.contract.names import NOTHING, Remembered, other_log, outdated_log, parse_transaction_name
from onceward.core.contract.sink import Guarantee
from onceward.core.contract.transaction import Progress
from onceward.core.errors import ConfigurationError, DataLossError, SinkError
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.text_options import check_choice, check_types
from onceward.sinks.folder_claims import newest_of
from onceward.sinks.write_ahead import ROWS_PER_SEND, WriteAheadLedger, WriteAheadLogSink

from .client import RedisSettings, asking, check_facts, read_facts
from .forms import (
    FORMS,
    Form,
    KeyTemplate,
    check_form,
    check_sizes,
    hashed_entry_columns,
    to_entries,
)
from .script import ACCEPT, CHOICES, CLAIM, EXPIRE, PRUNE, RELEASE, Loss, change_marker, deliver, marker_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.kit.text_options import Names
    from onceward.sinks.segments import Segment
    from onceward.sinks.write_ahead import Delivery

_log = logging.getLogger("onceward.redis")


class RedisSink(WriteAheadLogSink):
    """Sink that writes rows into one Redis or Valkey server.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        folder: Folder of the segments. All processes that write or commit must be able to reach it, and it must
            survive whatever the pipeline must survive.
        url: `redis://host:6379/0`, `rediss://…` (TLS; `?ssl_ca_certs=file`) or `unix:///socket`, as in redis-py. A
            password in it must be percent-encoded.
        key: Key of each row, with columns in braces: `total:{user}`; or the same key for all rows: `events`. `{{` and
            `}}` are literal braces.
        form: What a row becomes: "stream", an entry of a stream (XADD); "hash", the fields of a hash (HSET; a null
            deletes its field), which needs a column in the key; "list", a JSON object at the end of a list (RPUSH).
        maxlen: Approximate number of entries of a stream to keep; older ones are deleted. Default: all.
        durable: Wait until each delivery is in the append-only file (WAITAOF), and refuse a server that has none or
            that evicts keys. If False, a server that crashes may lose rows, and the guarantee is at most once.
        replicas: Number of replicas that must have each delivery in their append-only files.
        rows_per_send: Maximum number of rows in one delivery, which has at most about 16 MiB, or one row. No other
            client is served while its script runs (500 rows take a few milliseconds).
        proof: Hash the rows, so that `onceward verify` can tell whether streams and lists still hold them. Not for form
            "hash" or with `maxlen`, which do not keep all rows.
        username: User of the server's access control list, if it is not in the URL.
        password: Password, if it is not in the URL.
        timeout: Seconds to wait for an answer.
        connect_timeout: Seconds to wait for a connection.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    default_name = "redis"
    remembers = True

    def __init__(
        self,
        name: str,
        folder: str | Path,
        *,
        url: str,
        key: str,
        form: Form = "stream",
        maxlen: int | None = None,
        durable: bool = True,
        replicas: int = 0,
        rows_per_send: int = ROWS_PER_SEND,
        proof: bool = True,
        username: str | None = None,
        password: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(RedisSink, locals())
        super().__init__(name, folder, rows_per_send=rows_per_send, proof=proof, select=select, where=where)
        self.settings = RedisSettings(url, username, password, timeout, connect_timeout)
        self.form = check_choice("form", form, FORMS)
        if maxlen is not None and (form != "stream" or maxlen < 1):
            raise ConfigurationError(
                f"maxlen={maxlen} with form {form!r}: maxlen is for streams, and must be 1 or more"
            )
        if replicas < 0 or (replicas and not durable):
            raise ConfigurationError(
                f"replicas={replicas} with durable={durable}: replicas must be 0 or more, and needs durable=True"
            )
        self.key = KeyTemplate(key)
        self.maxlen = maxlen
        self.durable = durable
        self.replicas = replicas

    def __repr__(self) -> str:
        what = f"url={self.settings.shown!r}, key={self.key.text!r}, form={self.form!r}"
        return without_logins(f"RedisSink({self.name!r}, {self.folder!r}, {what})")

    def dataset(self) -> tuple[str, str] | None:
        server, _, database = self.settings.shown.partition("://")[2].partition("/")
        return f"redis://{server}", f"{database or 0}.{self.form}.{self.key.text}"

    @property
    def ordered(self) -> bool:
        """Whether of two rows with one key the later one stays."""
        return self.form == "hash"

    @property
    def rows_remain(self) -> bool:
        """Whether all rows stay in the server."""
        return self.form != "hash" and self.maxlen is None

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once, or at-most-once if the server may lose what it acknowledges."""
        return Guarantee.EXACTLY_ONCE if self.durable else Guarantee.AT_MOST_ONCE

    def validate_complete_mode(self) -> None:
        if self.form != "hash":
            raise ConfigurationError(
                f"output mode complete writes the whole result at each epoch, which would append every row to the "
                f"{self.form} again: use form 'hash'",
                sink=self.name,
            )

    def check_schema(self, schema: pa.Schema) -> None:
        check_form(self.name, self.form, self.key, schema, self.rows_per_send)

    def validate(self, schema: pa.Schema) -> None:
        """Check the columns, and that the server keeps what it acknowledges.

        Raises:
            ConfigurationError: The server cannot do it: a cluster, a replica, no append-only file, evicted keys.
            SchemaError: A column is missing, or has no text.
            RetryableSinkError: The server does not answer.
            SinkError: It refuses this user.
        """
        self.check_schema(schema)
        facts = read_facts(self.settings)
        for warning in check_facts(facts, self.settings.shown, durable=self.durable, replicas=self.replicas):
            _log.warning("sink %s: %s", self.name, warning)

    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        """Append a batch, if it can be written: after the decision it would be too late to refuse it."""
        check_form(self.name, self.form, self.key, batch.schema, self.rows_per_send)
        if transaction.hash is None:  # else each row is written to be hashed
            to_entries(self.name, self.form, self.key, batch)
        check_sizes(self.name, self.form, self.key, batch, self.settings)
        super().write(transaction, batch)

    def hashed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return keys and entries of streams, or elements of lists."""
        return hashed_entry_columns(self.form, self.key, batch, self.name)

    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        """Write rows and marker. A server that has lost its marker is an error, or with durable=False a warning."""
        name = parse_transaction_name(delivery.transaction)
        if name is None:
            raise SinkError(f"{delivery.transaction!r} is not a transaction name", sink=self.name)
        loss: Loss = "loud"
        if not self.durable:  # only a server that evicts keys loses a marker and keeps the rows
            loss = "again" if delivery.again and read_facts(self.settings).evicts else "first"
        entries = to_entries(self.name, self.form, self.key, rows, self.maxlen)
        deliver(self.settings, name, delivery.first, self.form, entries, loss, self.replicas)

    def ledger(self) -> RedisLedger:
        return RedisLedger(self)


class RedisLedger(WriteAheadLedger):
    """What the server remembers of decision logs, in a marker, and the folder beside it."""

    def __init__(self, sink: RedisSink) -> None:
        super().__init__(sink)
        self.settings, self.durable = sink.settings, sink.durable

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        """Look up the owner of the names, and the progress of its log, in the folder and in the server."""
        remembered = super().check_claim(scope, newest)
        marker = self._marker(scope)
        self._check_owner(scope, marker.get("log"))
        reached = self._reached(scope, marker)
        if reached > newest:
            raise outdated_log(scope, reached, newest, self.settings.shown)
        if lost := self._lost_rows(scope, marker, newest):
            return Remembered("log" in marker, reached, lost)
        if remembered is None or not self.durable:
            return remembered
        return remembered._replace(progress=min(remembered.progress, reached))

    def claim(self, scope: Scope) -> None:
        """Note the decision log that owns the names in the server, then in the folder.

        Raises:
            EpochConflictError: Another one owns them.
            DataLossError: The folder knows the log, and the server does not: it has lost data, or is another one. With
                durable=False the next delivery makes the marker again.
        """
        new = self.claims.known(scope) != scope.log
        known = (
            change_marker(self.settings, CLAIM, scope).decode(errors="replace")
            if new
            else self._marker(scope).get("log")
        )
        if known is None and (lost := self._lost_marker(scope)):
            raise DataLossError(f"{lost}. {CHOICES}", pipeline=scope.pipeline, sink=scope.sink)
        self._check_owner(scope, known)
        super().claim(scope)

    def accept_loss(self, scope: Scope) -> None:
        """Make the marker again, behind the acknowledged rows.

        Raises:
            EpochConflictError: Another decision log owns the names.
        """
        if not self.durable:
            return  # the next delivery makes it
        acknowledged = self.acknowledged(scope)
        oldest = min((Progress(name.start, name.epoch) for name in acknowledged), default=NOTHING)
        counts = [word for name, sent in acknowledged.items() for word in (str(name), sent)]
        known = change_marker(self.settings, ACCEPT, scope, oldest.generation, oldest.epoch - 1, *counts)
        self._check_owner(scope, known.decode(errors="replace"))

    def release(self, scope: Scope) -> None:
        """Forget, in the server and in the folder, other decision logs and how far this one had come."""
        if not self._marker(scope):
            self.claims.release(scope, own=True)
        change_marker(self.settings, RELEASE, scope)
        super().release(scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Delete the finished transactions of older epochs from the marker."""
        super().completed(scope, epoch)
        marker = self._marker(scope)
        ended = {name for name in _written(scope, marker) if name.epoch < epoch}
        if ended:
            floor = newest_of(ended - _released(marker))
            change_marker(self.settings, PRUNE, scope, *floor, *map(str, ended))

    def forget(self, scope: Scope) -> None:
        """Let the marker expire, and delete the proofs and the claim in the folder.

        The marker must outlive any delivery that may still arrive: without it, the server would write those rows again.
        """
        change_marker(self.settings, EXPIRE, scope)
        super().forget(scope)

    def _check_owner(self, scope: Scope, known: str | None) -> None:
        if known not in (None, scope.log):
            raise other_log(scope, str(known), self.settings.shown)

    def _lost_marker(self, scope: Scope) -> str:
        """Return that the server has lost the marker, which is missing, if the folder proves it."""
        if not self.durable or self.claims.known(scope) != scope.log:
            return ""
        return (
            f"{self.settings.shown} knows nothing of this pipeline and sink, though {self.folder} does: it was "
            "emptied, or is another server"
        )

    def _lost_rows(self, scope: Scope, marker: Mapping[str, str], newest: Progress) -> str:
        """Return a description of rows that the folder proves the server to have lost; empty if there are none.

        If a field of an epoch before the newest decision is missing, `_reached` tells: it may be deleted.
        """
        if "log" not in marker:
            return self._lost_marker(scope)
        if not self.durable:
            return ""
        for name, sent in self.acknowledged(scope).items():
            # The newest rows of a sink may be of an epoch before the newest decision, whatever that one was for.
            here = marker.get(str(name), "0" if Progress(name.start, name.epoch) >= newest else "")
            if here.isdigit() and int(here) < sent:
                return f"{self.settings.shown} has {here} rows of {name}, and had acknowledged {sent}"
        return ""

    def _reached(self, scope: Scope, marker: Mapping[str, str]) -> Progress:
        """Return how far the log had come as the server knows it: the floor stands for deleted transactions."""
        try:
            floor = Progress(int(marker.get("floor:start", -1)), int(marker.get("floor:epoch", -1)))
        except ValueError:
            raise SinkError(
                f"the marker {scope.head} at {self.settings.shown} is damaged: its floor is no number. Bring it "
                'back from a backup, or go back on purpose with rewind="…" and a reason',
                pipeline=scope.pipeline,
                sink=scope.sink,
            ) from None
        return max(floor, newest_of(_written(scope, marker) - _released(marker)))

    def _marker(self, scope: Scope) -> dict[str, str]:
        """Return the marker; {} if there is none."""
        with asking(self.settings, "cannot read the marker") as client:
            fields: dict[bytes, bytes] = client.execute_command("HGETALL", marker_key(scope))
        return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}


def _written(scope: Scope, marker: Iterable[str]) -> set[TransactionName]:
    """Return the transactions whose rows the marker counts."""
    return {name for name in map(parse_transaction_name, marker) if name is not None and name.scope == scope}


def _released(marker: Mapping[str, str]) -> set[TransactionName]:
    """Return the marker's transactions from before the newest rewind."""
    return {name for name in map(parse_transaction_name, marker.get("released", "").split()) if name is not None}
