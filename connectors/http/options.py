"""Arguments of HttpSink out of the options of a Spark format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.kit.options import Option, flag, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER: Final = "header."


def _statuses(text: str) -> list[int]:
    return [int(status) for status in text.split(",")]


OPTIONS: Final = (
    Option("url", "url", required=True),
    Option("directory", "directory", required=True),
    Option("name", "name"),
    Option("body", "body"),
    Option("rowsPerSend", "rows_per_send", int),
    Option("serverHonoursKeys", "server_honours_keys", flag),
    Option("keyHeader", "key_header"),
    Option("keyFormat", "key_format"),
    Option("username", "username"),
    Option("password", "password"),
    Option("token", "token"),
    Option("timeout", "timeout", float),
    Option("connectTimeout", "connect_timeout", float),
    Option("longestWait", "longest_wait", float),
    Option("retryStatuses", "retry_statuses", _statuses),
    Option("caFile", "ca_file"),
    Option("clientCert", "client_cert"),
    Option("clientKey", "client_key"),
    Option("probe", "probe"),
)


def read_http_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of HttpSink.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    headers = {name[len(_HEADER) :]: value for name, value in options.items() if name.lower().startswith(_HEADER)}
    rest = {name: value for name, value in options.items() if not name.lower().startswith(_HEADER)}
    return {"name": "http", **read_options("an HTTP sink", rest, OPTIONS), "headers": headers}
