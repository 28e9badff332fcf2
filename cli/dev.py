"""`onceward dev up | down | status | env`: local services for development."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from onceward.testing.services import DevServices

app = typer.Typer(no_args_is_help=True, help="Run a real Kafka broker and PostgreSQL server in the background.")

Home = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the services' state.", envvar="ONCEWARD_DEV_HOME", show_default=".run in the current folder"
    ),
]
WithKafka = Annotated[bool, typer.Option("--kafka/--no-kafka", help="Include Kafka.")]
WithPostgres = Annotated[bool, typer.Option("--postgres/--no-postgres", help="Include PostgreSQL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(*, home: Home = None, kafka: WithKafka = True, postgres: WithPostgres = True, as_json: AsJson = False) -> None:
    """Start the services that are not running, wait until they answer, and print their addresses."""
    services = _services(home, kafka=kafka, postgres=postgres)
    say = Console(stderr=True)
    if kafka:
        _fetch_kafka(say)
    with say.status("starting …"):
        services.start()
    _show(services, as_json=as_json)


@app.command()
def down(
    *,
    home: Home = None,
    kafka: WithKafka = True,
    postgres: WithPostgres = True,
    delete: Annotated[bool, typer.Option("--delete", help="Also delete their data, ports and passwords.")] = False,
) -> None:
    """Stop the services; keep their data for the next start unless --delete is given."""
    services = _services(home, kafka=kafka, postgres=postgres)
    for service in services.each:
        was_running = service.running
        service.stop()
        if delete:
            service.delete()
        typer.echo(f"{service.title} {'stopped' if was_running else 'was not running'}{', deleted' if delete else ''}")


@app.command()
def status(*, home: Home = None, as_json: AsJson = False) -> None:
    """Print which services are running, and their addresses; exit with code 1 unless all are running."""
    services = _services(home)
    _show(services, as_json=as_json)
    if not all(service.running for service in services.each):
        raise typer.Exit(1)


@app.command()
def env(*, home: Home = None) -> None:
    """Print the addresses as shell variables, for eval "$(onceward dev env)"."""
    services = _services(home)
    if not all(service.running for service in services.each):
        raise ConfigurationError(f"no services run in {services.home}: start them with `onceward dev up`")
    typer.echo(f"export KAFKA_BOOTSTRAP_SERVERS={shlex.quote(services.bootstrap_servers)}")
    typer.echo(f"export DATABASE_URL={shlex.quote(services.dsn)}")


def _services(home: Path | None, *, kafka: bool = True, postgres: bool = True) -> DevServices:
    try:
        from onceward.testing.services import services_at  # noqa: PLC0415 - so that other commands work without this extra
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is needed: pip install 'onceward[dev-services,kafka]'") from error
    return services_at(home, kafka=kafka, postgres=postgres, detached=True)


def _fetch_kafka(say: Console) -> None:
    from onceward.testing.services.jars import ensure_jars, jars_present  # noqa: PLC0415
    from onceward.testing.services.kafka import KAFKA_LOCK  # noqa: PLC0415

    if not jars_present(KAFKA_LOCK):
        with say.status("downloading Kafka's jars, only the first time …"):
            ensure_jars(KAFKA_LOCK)


def _show(services: DevServices, *, as_json: bool) -> None:
    facts: dict[str, Any] = {"home": str(services.home)}
    for service in services.each:
        pid, address = service.pid, service.address if service.folder.exists() else None
        facts[service.title.lower()] = {
            "running": pid is not None,
            "pid": pid,
            service.address_name: address,
            "log": str(service.log),
        }
        if not as_json:  # and no table: an address that is cut or wrapped cannot be copied
            typer.echo(f"{service.title}: {f'running, pid {pid}' if pid is not None else 'down'}")
            if address is not None:
                typer.echo(f"  {service.address_name} {address}\n  log {service.log}")
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
