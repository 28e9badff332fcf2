"""An OAuth 2.0 token endpoint for the tests: unsigned tokens for whoever knows the client's secret."""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def token_endpoint(client: str, secret: str, principal: str, mark: str) -> Iterator[str]:
    """Serve tokens (RFC 6749, section 4.4) whose claims hold `mark`; its URL."""
    wanted = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            known = self.headers["Authorization"] == wanted
            answer = json.dumps({"access_token": token(principal, mark), "expires_in": 3600} if known else {}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()


def token(principal: str, mark: str) -> str:
    """An unsecured one (RFC 7515, appendix A.5)."""
    now = time.time()
    claims = {"sub": principal, "iat": now, "exp": now + 3600, "jti": mark}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
