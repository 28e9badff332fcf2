"""What onceward knows of HTTP servers beyond its sink; imported by every command, so without httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.connector import Connector

if TYPE_CHECKING:
    from onceward.core.contract.sink import Sink


class HttpConnector(Connector):
    """Connector of HTTP servers, which have no more than a sink: a server is sent rows, and asked nothing else."""

    name = "http"
    sink = "onceward.connectors.http.sink:HttpSink"
    extra = "http"

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Send the sink's probe."""
        from .sink import HttpSink  # noqa: PLC0415 - an extra

        if isinstance(sink, HttpSink):
            sink.check_connection()
