"""`onceward demo`."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.live import Live

from onceward.testing.services import dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .display import live_view, summary
from .picture import draw
from .settings import DemoSettings
from .supervisor import Story, run

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.testing.services import DevServices


def demo(*, orders: int, users: int, kills: int, seed: int, home: Path, picture: Path) -> int:
    """Run the demo; 0 if nothing is missing and nothing duplicated in the exactly-once targets, else 1.

    Args:
        orders: How many orders to produce.
        users: How many users they belong to.
        kills: How often the driver is killed; broker and database are killed once each besides.
        seed: Of the orders and of the kills.
        home: Folder for services, checkpoints and logs; emptied first.
        picture: Where the picture goes (PNG or SVG).
    """
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)  # so that whoever ends the demo leaves no process behind
    console.print("setting up: jars, a Kafka broker, a PostgreSQL server …")
    ensure_jars(PEER_JARS)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with dev_services(home / "services") as services:
        settings = _settings(services, home, orders=orders, users=users, seed=seed)
        with Live(console=console, refresh_per_second=4) as live:
            story = run(settings, services, kills, lambda story: _show(live, story))
        draw(story, picture)
    console.print(summary(story))
    console.print(f"picture: {picture}   logs: {home}")
    return 0 if all(verdict.exact for verdict in story.verdicts[:2]) else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _show(live: Live, story: Story) -> None:
    live.update(live_view(story))


def _settings(services: DevServices, home: Path, *, orders: int, users: int, seed: int) -> DemoSettings:
    address = urlsplit(services.dsn)
    password = f"&password={address.password}" if address.password else ""
    return DemoSettings(
        bootstrap_servers=services.bootstrap_servers,
        dsn=services.dsn,
        jdbc_url=(
            f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}"
            f"?user={unquote(address.username or '')}{password}&reWriteBatchedInserts=true"
        ),
        home=str(home.absolute()),
        orders=orders,
        users=users,
        seed=seed,
    )
