"""`onceward ui`."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import Annotated

import typer

from onceward.core.errors import ConfigurationError, NoDecisionLogError
from onceward.core.kit.extras import needing
from onceward.core.log.store import local_folder

from ..operate import Search  # noqa: TC001 - typer reads it
from ..shared_options import with_group
from .desk import Desk, Watch

PORT = 8461


@with_group
def ui(
    search: Search,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = PORT,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a --host that other machines can reach; the page has no TLS.")
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show transactions, but do not offer to end them.")
    ] = False,
) -> None:
    """Show pipelines, epochs, checkpoints and transactions in doubt on a local web page.

    --store is a checkpoint folder, or a folder that contains several; repeatable. With --at or
    --sinks, the page also shows what is open in the targets, and can commit and abort as `onceward txn` does.
    """
    with needing("ui"):
        from .server import serve_page  # noqa: PLC0415 - an extra
        from .web import make_app  # noqa: PLC0415
    _check(search, host, expose=expose)
    watch = Watch(search.store or [], search.pipeline)
    desk, token = Desk(watch, search, actions=not read_only), secrets.token_urlsafe(24)
    logs = watch.look()
    if watch.errors and not logs:
        raise ConfigurationError("; ".join(watch.errors))
    for error in watch.errors:
        typer.echo(f"warning: {error}", err=True)
    listening = _listen(host, port)
    names = {host.lower(), socket.gethostname().lower()} if not _is_loopback(host) else None
    shown = f"[{host}]" if ":" in host else host
    typer.echo(
        f"{len(logs)} pipeline{'s' * (len(logs) != 1)}. Open http://{shown}:{listening.getsockname()[1]}/#token={token}"
    )
    typer.echo("Whoever has this link can see the pipelines and end transactions. Ctrl-C stops the page")
    if names is not None:
        typer.echo(
            f"warning: other machines can reach {host}, and there is no TLS: the token can be intercepted. Prefer "
            f"ssh -L {PORT}:127.0.0.1:{PORT} with the default --host and --port",
            err=True,
        )
    serve_page(make_app(desk, token, names), listening)


def _check(search: Search, host: str, *, expose: bool) -> None:
    if not search.store:
        raise ConfigurationError("give at least one --store: a checkpoint folder, or a folder that contains several")
    for url in search.store:
        local = local_folder(url)
        if local is not None and not local[0].is_dir():
            raise NoDecisionLogError(
                f"no such folder: {local[0]}. Give a checkpoint folder, or one that contains several"
            )
    if not _is_loopback(host) and not expose:
        raise ConfigurationError(
            f"--host {host} can be reached from other machines, and the page has no TLS. Use the default and "
            "`ssh -L`, or add --expose"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Give another --port, or --port 0"
        ) from error
