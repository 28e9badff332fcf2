"""Arguments of RedisSink out of the options of a Spark format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.kit.options import Option, flag, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS: Final = (
    Option("url", "url", required=True),
    Option("key", "key", required=True),
    Option("directory", "directory", required=True),
    Option("name", "name"),
    Option("form", "form"),
    Option("maxlen", "maxlen", int),
    Option("durable", "durable", flag),
    Option("replicas", "replicas", int),
    Option("rowsPerSend", "rows_per_send", int),
    Option("username", "username"),
    Option("password", "password"),
    Option("timeout", "timeout", float),
    Option("connectTimeout", "connect_timeout", float),
)


def read_redis_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of RedisSink.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    return {"name": "redis", **read_options("a Redis sink", options, OPTIONS)}
