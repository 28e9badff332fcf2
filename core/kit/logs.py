"""Log records as lines of JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

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
