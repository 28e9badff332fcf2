"""The formats' options, and good values of those that must be given."""

from __future__ import annotations

from onceward.connectors.spark.formats.formats import SinkFormat, format_of
from onceward.connectors.spark.session.options import FormatOptions
from onceward.core.contract.connector import connectors
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.text_options import option_names

GOOD: dict[str, dict[str, str]] = {
    "onceward-kafka": {"kafka.bootstrap.servers": "b:9092", "topic": "t"},
    "onceward-postgres": {"dsn": "postgresql://h/db", "dbtable": "t"},
    "onceward-sql": {"url": "sqlite:////tmp/db", "dbtable": "t"},
    "onceward-files": {"path": "/tmp/out"},
    "onceward-http": {"url": "http://h/", "folder": "/tmp/wal"},
    "onceward-redis": {"url": "redis://h", "folder": "/tmp/wal", "key": "k"},
}


def options_of(kind: type[SinkFormat]) -> list[str]:
    sink = kind.of_connector().sink_class()
    return list(dict.fromkeys([*OF_FORMATS, *option_names(sink, aliases=sink.option_aliases)]))


FORMATS = [format_of(kind) for kind in connectors().values() if kind.sink]
OPTIONS = [(kind, option) for kind in FORMATS for option in options_of(kind)]


def use(kind: type[SinkFormat], options: dict[str, str]) -> None:
    """Read all options, as each way of writing does before anything else."""
    made = kind(options)
    made.own_sink()
    FormatOptions.parse(options)
