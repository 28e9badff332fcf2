"""Log records as lines of JSON, and where nobody configures logging: in Spark's Python workers."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Final

from ..errors import ConfigurationError

_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formatter that writes each record as one line of JSON: time, level, logger, message, and the record's fields.

    The fields of onceward's records are `pipeline`, `sink`, `epoch`, `transaction`, `rows`, `milliseconds` and others:
    docs/logging.md lists them. An exception becomes the field `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def show_if_asked() -> None:
    """Show onceward's records on stderr in a process that nobody else configures, as ONCEWARD_LOG asks.

    It is a level, or a level and `json`: `INFO`, `INFO,json`. Without it, warnings and errors are shown.

    Raises:
        ConfigurationError: It is something else.
    """
    asked, loggers = os.environ.get("ONCEWARD_LOG") or "WARNING", logging.getLogger("onceward")
    handlers = [*loggers.handlers, *logging.getLogger().handlers]
    if any(not isinstance(handler, logging.NullHandler) for handler in handlers):
        return
    level, _, form = asked.partition(",")
    if level.upper() not in logging.getLevelNamesMapping() or form not in {"", "json"}:
        raise ConfigurationError(f"ONCEWARD_LOG={asked} is not a level such as INFO, or INFO,json")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers.addHandler(handler)
    loggers.setLevel(level.upper())
