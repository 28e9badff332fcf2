"""HttpSink: an epoch's rows to an HTTP server, in order, each delivery under an idempotency key.

The key is the delivery's identity, the same in every try and every process; so is the body. A server that honors keys
takes a delivery once, and answers a repeated one as it answered the first: then it is exactly once, else at least once.
See "The Idempotency-Key HTTP Header Field" (draft-ietf-httpapi-idempotency-key-header-07).
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_args
from urllib.parse import urlsplit

import msgspec

from onceward.core.errors import ConfigurationError, LogDamagedError, RetryableSinkError, text_of
from onceward.core.kit import typed
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.rows import check_columns, json_rows
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.text_options import MOST_SECONDS, arguments, check_choice, check_types
from onceward.sinks.write_ahead import ROWS_PER_SEND, WriteAheadLogSink

from .client import HttpSettings, clients, error_class_of, with_authentication

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    import pyarrow as pa

    from onceward.core.kit.text_options import Names
    from onceward.sinks.segments import Segment
    from onceward.sinks.write_ahead import Delivery

Body = Literal["json", "jsonl"]
KeyFormat = Literal["quoted", "plain", "uuid"]
Probe = Literal["OPTIONS", "HEAD", "GET", "none"]
KEY_HEADER: Final = "Idempotency-Key"
_BODIES: Final[dict[str, tuple[str, Callable[[list[str]], str]]]] = {
    "json": ("application/json", lambda rows: f"[{','.join(rows)}]"),
    "jsonl": ("application/x-ndjson", lambda rows: "".join(f"{row}\n" for row in rows)),
}
_KEYS: Final[dict[str, Callable[[str], str]]] = {
    "quoted": lambda identity: f'"{identity}"',
    "plain": lambda identity: identity,
    "uuid": lambda identity: str(uuid.uuid5(uuid.NAMESPACE_URL, identity)),
}
_PROBES: Final = get_args(Probe)
_NAME: Final = re.compile(r"[A-Za-z0-9-]+\Z")
_HEADER: Final = "header."
"""How the options of a format begin that give headers."""

_ADVICE: Final = {
    206: ", so it took the delivery for a question",
    207: ", which does not say that it took all rows: let it take all or none",
    413: ". The rows are decided, and their number is kept: let the server take larger requests. A lower rows_per_send "
    "is for later rows",
}
"""What else there is to say of a status."""

_log = logging.getLogger("onceward.http")


class _Pinned(msgspec.Struct, frozen=True):
    """Settings that are stored with a delivery."""

    body: Literal["json", "jsonl"]
    key_format: Literal["quoted", "plain", "uuid"]
    key_header: Annotated[str, msgspec.Meta(pattern=f"^{_NAME.pattern}")]


class HttpSink(WriteAheadLogSink):
    """Sink that POSTs rows to a URL.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        folder: Folder of the segments. All processes that write or commit must be able to reach it, and it must
            survive whatever the pipeline must survive.
        url: `http://` or `https://`. It must not contain a user or a password. Do not put a token into it either: other
            programs log URLs.
        body: What a request holds: "json", an array of objects; "jsonl", one object per line.
        rows_per_send: Maximum number of rows in one request, which has at most about 16 MiB, or one row.
        proof: Record a hash of the rows of each epoch in the decision log.
        server_honors_keys: Whether the server accepts each key once, however often it is sent, and remembers it for
            longer than any outage that must be survived. Only then is the sink exactly once.
        key_header: Name of the header that holds the key.
        key_format: "quoted", a quoted string, as in the draft (RFC 9651); "plain", without the quotes; "uuid", a UUID
            (version 5) made from it. Keys have at most 230 characters.
        headers: Headers of each request, which are treated as secrets. As an option, one `header.X-Name` for each. An
            empty value is sent as it is, because HTTP allows it.
        username: User name for Basic authentication.
        password: Password for Basic authentication.
        token: Bearer token.
        timeout: Seconds to wait for the headers of the response, and for its body.
        connect_timeout: Seconds to wait for a connection.
        longest_wait: Upper limit, in seconds, for the pause that a server asks for with Retry-After.
        retry_statuses: Statuses from 300 to 499 that are temporary on this server, and so are retried, in addition to
            408, 409, 425 and 429. As an option, comma-separated.
        ca_file: PEM file of the authorities to trust, instead of the usual ones. Certificates are always verified.
        client_cert: PEM file of the client certificate.
        client_key: PEM file of its key, if it is not in `client_cert`.
        probe: Method with which `validate` asks whether there is a server (any answer will do): "OPTIONS", "HEAD",
            "GET" or "none".
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        name: str,
        folder: str | Path,
        *,
        url: str,
        body: Body = "json",
        rows_per_send: int = ROWS_PER_SEND,
        proof: bool = True,
        server_honors_keys: bool = False,
        key_header: str = KEY_HEADER,
        key_format: KeyFormat = "quoted",
        headers: Mapping[str, str] | None = None,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        longest_wait: float = 60.0,
        retry_statuses: Collection[int] = (),
        ca_file: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        probe: Probe = "OPTIONS",
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(HttpSink, locals())
        super().__init__(name, folder, rows_per_send=rows_per_send, proof=proof, select=select, where=where)
        self.settings = HttpSettings(
            url,
            with_authentication(headers or {}, username, password, token),
            timeout,
            connect_timeout,
            ca_file,
            client_cert,
            client_key,
        )
        self.remembers = server_honors_keys
        self.body = check_choice("body", body, _BODIES)
        self.key_format = check_choice("key_format", key_format, _KEYS)
        self.key_header = key_header
        self.probe = check_choice("probe", probe, _PROBES)
        self.longest_wait = longest_wait
        self.retry_statuses = frozenset(retry_statuses)
        names = {header.lower() for header, _ in self.settings.headers}
        if not _NAME.fullmatch(key_header) or key_header.lower() in names:
            raise ConfigurationError(
                f"key_header {key_header!r} is not a valid header name, or is also given in headers"
            )
        if not 0 <= longest_wait <= MOST_SECONDS:
            raise ConfigurationError(f"longest_wait must be 0 seconds or more and at most a day, not {longest_wait}")
        wrong = sorted(status for status in self.retry_statuses if status not in range(300, 500))
        if wrong:
            raise ConfigurationError(f"retry_statuses {wrong}: give statuses from 300 to 499")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make a sink from a Spark format's options: the arguments' names, in any case; `header.X-Name` for headers.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        headers = {name: value for name, value in options.items() if name.lower().startswith(_HEADER)}
        rest = {name: value for name, value in options.items() if name not in headers}
        headers_ = {name[len(_HEADER) :]: value for name, value in headers.items()}
        return cls(
            headers=headers_, **arguments(cls, rest, defaults={"name": "http"}, also=(f"{_HEADER}*", *OF_FORMATS))
        )

    def __repr__(self) -> str:
        names = [name for name, _ in self.settings.headers]
        what = f"url={self.settings.shown!r}, headers={names}"
        return without_logins(f"HttpSink({self.name!r}, {self.folder!r}, {what})")

    def dataset(self) -> tuple[str, str] | None:
        """Return the server, and a digest of the path, which may be secret; a query's secrets may be rotated."""
        path = urlsplit(self.settings.url).path
        return self.settings.shown.rstrip("/…"), hashlib.sha256(path.encode()).hexdigest()[:16]

    def check_schema(self, schema: pa.Schema) -> None:
        check_columns(self.name, schema)

    def validate(self, schema: pa.Schema) -> None:
        """Check the columns, the TLS files, and that a server answers; any answer will do.

        Raises:
            ConfigurationError: A TLS file cannot be read.
            SchemaError: JSON cannot hold a column.
            RetryableSinkError: No server answers.
        """
        self.check_schema(schema)
        if self.settings.url.startswith("http://") and self.settings.headers:
            _log.warning("sink %s sends its headers unencrypted to %s", self.name, self.settings.shown)
        self.check_connection()

    def check_connection(self) -> None:
        """Check the TLS files, and that a server answers; any answer will do.

        Raises:
            ConfigurationError: A TLS file cannot be read.
            RetryableSinkError: No server answers.
        """
        client = clients.get(self.settings)  # an unusable TLS file or proxy is found here
        if self.probe != "none":
            answer = client.request(self.probe, {})
            if answer.location:
                _log.warning(
                    "sink %s: %s redirects %s to %s, and the sink follows no redirects: if it redirects POST, too, "
                    "give that address as url",
                    self.name,
                    self.settings.shown,
                    self.probe,
                    answer.location,
                )

    def write(self, transaction: Segment, batch: pa.RecordBatch) -> None:
        """Append a batch, if it can be sent: after the decision it would be too late to refuse it."""
        check_columns(self.name, batch.schema)
        json_rows(self.name, batch)
        super().write(transaction, batch)

    def pinned(self) -> dict[str, Any]:
        return {"body": self.body, "key_header": self.key_header, "key_format": self.key_format}

    def send(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        """POST rows as they would have been posted when they were written."""
        try:
            pinned = typed.convert({**self.pinned(), **delivery.pinned}, _Pinned)
        except msgspec.ValidationError as wrong:
            raise LogDamagedError(
                f"the request of a delivery cannot be read: {text_of(wrong)}",
                sink=self.name,
                transaction=delivery.transaction,
            ) from wrong
        kind, join = _BODIES[pinned.body]
        key = _KEYS[pinned.key_format](str(delivery))
        content = join(json_rows(self.name, rows)).encode()
        client = clients.get(self.settings)
        client.wait(self.longest_wait)
        answer = client.request("POST", {pinned.key_header: key, "Content-Type": kind}, content)
        error = error_class_of(answer.status, self.retry_statuses)
        if error is None:
            return
        text = f"{self.settings.shown} answers {answer.status} to a delivery"
        text += f" ({answer.text})" if answer.text else ""
        if answer.retry_after is not None:
            text += f", and wants to be asked again in {answer.retry_after:g} s"
        text += f", a redirect to {answer.location}, which is not followed" if answer.location else ""
        text += _ADVICE.get(answer.status, "")
        if error is not RetryableSinkError:
            text += ". No later rows were sent; it is sent again at the next start, under the same key"
        raise error(text, sink=self.name, transaction=str(delivery))
