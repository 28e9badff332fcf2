"""The HTTP server of the matrix: it takes deliveries, honors their keys, and shows the rows that it has."""

from __future__ import annotations

import json
from typing import Any

from tests.http_kit import Inbox, Plan, Request


class Hook(Inbox):
    """A server on which each pipeline has a path of its own; GET returns the rows taken at a path."""

    def answer(self, request: Request) -> Plan:
        if request.method != "GET":
            return super().answer(request)
        return Plan(take=False, status=200, body=json.dumps(self.rows(request.path)).encode())

    def rows(self, path: str) -> list[dict[str, Any]]:
        return [row for request in self.taken if request.path == path for row in request.rows]
