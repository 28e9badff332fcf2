"""What onceward knows of HTTP servers beyond its sink; imported by every command, so without httpx."""

from onceward.core.connector import Connector


class HttpConnector(Connector):
    """An HTTP server: it is asked for nothing but what the sink sends."""

    name = "http"
    sink = "onceward.connectors.http.sink:HttpSink"
    extra = "http"
