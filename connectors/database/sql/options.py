"""A sink's settings: reading them from Spark's options, and what goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import Option, flag, read_options

from ..modes import columns_in

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_sql_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of SqlAlchemySink from options: any case; `dbtable` (or `table`); `key` as columns between commas.

    Raises:
        ConfigurationError: An option is unknown, missing or not readable.
    """
    arguments = read_options("an SQLAlchemy sink", options, OPTIONS)
    if "table" not in arguments:
        raise ConfigurationError("an SQLAlchemy sink needs the options ['dbtable']")
    return {"name": "sql", **arguments}


OPTIONS: Final = (
    Option("url", "url", required=True),
    Option("dbtable", "table"),
    Option("table", "table"),
    Option("name", "name"),
    Option("mode", "mode"),
    Option("key", "key", columns_in),
    Option("createTable", "create_table", flag),
    Option("commit", "commit"),
    Option("lockTimeout", "lock_timeout", float),
    Option("answerWithin", "answer_within", float),
    Option("ledgerSchema", "ledger_schema"),
    Option("ledgerEpochs", "ledger_epochs", int),
    Option("parallelism", "parallelism", int),
)
