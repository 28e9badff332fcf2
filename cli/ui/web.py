"""The page's routes, and what guards them.

1. The `Host` header must name this machine: a page of another site whose name is made to resolve to it (DNS rebinding)
   sends that site's name.
2. Whatever shows or changes something needs the token, in a header. A browser adds it to no request by itself, and lets
   no other site's page add it, so a request forged by one fails (CSRF). `Origin` and `Sec-Fetch-Site`, where a browser
   sends them, must say the same.
3. The policy (CSP) allows scripts and styles from files of this package alone, and the page's script writes text,
   never HTML.
"""

from __future__ import annotations

import ipaddress
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from onceward.core.errors import ConfigurationError, OncewardError, text_of
from onceward.core.kit import typed

from ..command_advice import message
from .desk import Abort, Commit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .changes import Update
    from .desk import Desk

STATIC: Final = Path(__file__).with_name("static")
TOKEN: Final = "x-onceward-token"  # noqa: S105 - the header's name
_MOST_BYTES: Final = 1 << 20
_MOST_DIGITS: Final = 16
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(desk: Desk, token: str, names: Collection[str] | None = None) -> ASGIApp:
    """Make the web application.

    Args:
        desk: Desk that answers the requests.
        token: Secret that a request must contain.
        names: Names under which this machine is called from others, besides its addresses; None: it is not.
    """
    routes = [
        Route("/", _page),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/api/state", partial(_update, lambda _, since: desk.state(since))),
        Route("/api/pipelines/{id}", partial(_update, desk.pipeline)),
        Route("/api/look", partial(_act, lambda _: desk.look(), None), methods=["POST"]),
        Route("/api/commit", partial(_act, desk.commit, Commit), methods=["POST"]),
        Route("/api/abort", partial(_act, desk.abort, Abort), methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, names)


class Guard:
    """Refuses what comes from elsewhere or does not know the token, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, token: str, names: Collection[str] | None) -> None:
        self._app, self._token, self._names = app, token, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refuse(Request(scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (refused or self._app)(scope, receive, guarded)

    def _refuse(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not self._is_mine(host):
            return _error(403, "the page may not be opened under this address (header Host)")
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none")
        if (origin is not None and urlsplit(origin).netloc != host) or site in {"cross-site", "same-site"}:
            return _error(403, "pages of other sites may not send requests here")
        token = request.headers.get(TOKEN, "")
        if request.scope["path"].startswith("/api/") and not secrets.compare_digest(
            token.encode(), self._token.encode()
        ):
            return _error(401, "the token is missing or wrong: `onceward ui` prints it when it starts")
        return None

    def _is_mine(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname if parts.port != 0 else None
        except ValueError:
            return False
        if name is None or parts.netloc != host or "@" in host:  # frameworks make a URL of it, and read its path
            return False
        if name == "localhost":
            return True
        try:  # the name that another site's page would send is never an address
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in (self._names or ())
        return address.is_loopback or self._names is not None


async def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _update(do: Callable[[str, int], Update | None], request: Request) -> Response:
    since = request.query_params.get("since", "")
    known = int(since) if since.isdecimal() and len(since) < _MOST_DIGITS else 0
    try:
        update = await run_in_threadpool(do, request.path_params.get("id", ""), known)
    except ConfigurationError as error:
        return _error(404, message(error))
    if update is None:
        return Response(status_code=204)
    return Response(msgspec.json.encode(update), media_type="application/json")


async def _act(do: Callable[[Any], Any], order: Any, request: Request) -> Response:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            return _error(413, "the request is too long")
    try:
        asked = typed.decode(body, order) if order is not None else None
    except msgspec.MsgspecError as error:
        return _error(400, f"the request cannot be read: {text_of(error)}")
    try:
        done = await run_in_threadpool(do, asked)
    except OncewardError as error:
        return _error(400 if isinstance(error, ConfigurationError) else 409, message(error))
    return Response(msgspec.json.encode({"done": done}), media_type="application/json")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)
