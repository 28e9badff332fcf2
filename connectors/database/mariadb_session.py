"""A cursor of PyMySQL that refuses values that MariaDB would change, and statements that the server would not take.

A statement longer than `max_allowed_packet` makes the server close the connection, which looks like an outage; so it is
never sent. Many rows are sent in statements that are short enough.
"""

from __future__ import annotations

from typing import Any, Final

import pymysql
from pymysql.cursors import Cursor as PlainCursor

_TRUNCATED: Final = 1265
_PACKET_TOO_LARGE: Final = 1153
_LONGEST: Final = PlainCursor.max_stmt_length
_ROOM: Final = 1024
"""Bytes of a packet that are left for its head."""


class Cursor(PlainCursor):  # type: ignore[misc]
    """A cursor that refuses values that the server would change with a note, and statements that are too long."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.max_packet: int | None = getattr(connection, "onceward_max_packet", None)
        if self.max_packet is not None:
            self.max_stmt_length = min(_LONGEST, self.max_packet - _ROOM)

    def execute(self, query: Any, args: Any = None) -> int:
        """Run a statement; executemany, which packs many rows into each, runs all of them through here.

        Raises:
            pymysql.DataError: The server has rounded a number or cut a text, or the statement is too long for it.
        """
        statement = self.mogrify(query, args)
        self._check_length(statement)
        count: int = super().execute(statement)
        if self.warning_count:
            self._refuse_changes()
        return count

    def _check_length(self, statement: Any) -> None:
        if self.max_packet is None or 4 * len(statement) < self.max_packet:
            return
        size = len(statement.encode(errors="surrogateescape") if isinstance(statement, str) else statement)
        if size + _ROOM > self.max_packet:
            raise pymysql.DataError(
                _PACKET_TOO_LARGE,
                f"a row makes a statement of {size} bytes, and the server takes {self.max_packet} (max_allowed_packet)",
            )

    def _refuse_changes(self) -> None:
        notes: Any = self.connection.show_warnings()
        for _, number, message in notes:
            if number == _TRUNCATED:
                raise pymysql.DataError(number, message)
