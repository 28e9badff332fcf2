"""`onceward dev up | down | status | env`: local services for development."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.extras import needing

from .shared_options import AsJson  # noqa: TC001 - typer reads them
from .show import console, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from onceward.testing.services import DevServices

MOST_BROKERS: Final = 9

app = typer.Typer(no_args_is_help=True, help="Run a real Kafka broker and PostgreSQL server in the background.")

Home = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the services' state.",
        envvar="ONCEWARD_DEV_HOME",
        show_envvar=False,  # the panel would cut its name, and those of options
        show_default=".run in the current folder",
    ),
]
WithKafka = Annotated[bool, typer.Option("--kafka/--no-kafka", help="Include Kafka.")]
Brokers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of Kafka brokers, 1 to 9. Several keep each topic on all of them, and notice a fault after as "
        "long as with Kafka's defaults (9 s); each takes 300 MB of memory.",
        show_default="1, or as many as there are",
    ),
]
WithPostgres = Annotated[bool, typer.Option("--postgres/--no-postgres", help="Include PostgreSQL.")]


@app.command()
def up(
    *,
    home: Home = None,
    kafka: WithKafka = True,
    postgres: WithPostgres = True,
    brokers: Brokers = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Create NAME or NAME:PARTITIONS if it does not exist; repeatable."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Create 'NAME (COLUMNS)' if it does not exist; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the services that are not running, wait until they answer, and print their addresses.

    The environment variable ONCEWARD_DEV_HOME sets --home, here and for `down`.
    """
    topics, tables = [_topic(text) for text in topic or ()], [_table(text) for text in table or ()]
    if (topics and not kafka) or (tables and not postgres):
        raise ConfigurationError(
            "--topic needs Kafka and --table needs PostgreSQL: leave out --no-kafka, --no-postgres"
        )
    if brokers is not None and not kafka:
        raise ConfigurationError("--brokers needs Kafka: leave out --no-kafka")
    if brokers is not None and not 1 <= brokers <= MOST_BROKERS:
        raise ConfigurationError(f"--brokers {brokers} is refused: give a number from 1 to {MOST_BROKERS}")
    services = _services(home, kafka=kafka, postgres=postgres, brokers=brokers)
    say = console(stderr=True)
    if kafka:
        _fetch_kafka(say)
    with say.status("starting …"):
        services.start()
    lines = [*_create_topics(services, topics), *_create_tables(services, tables)]
    _show(services, as_json=as_json)
    for what in () if as_json else lines:
        typer.echo(what)


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
    ran = {name for name, service in services.named.items() if service.running}
    services.stop()
    for name, service in services.named.items():
        if delete:
            service.delete()
        typer.echo(f"{name} {'stopped' if name in ran else 'was not running'}{', deleted' if delete else ''}")


@app.command("status")
def print_services(*, home: Home = None, as_json: AsJson = False) -> None:
    """Print which services are running, and their addresses; exit with code 1 unless all are running."""
    services = _services(home)
    _show(services, as_json=as_json)
    if not all(service.running for service in services.each):
        raise typer.Exit(1)


@app.command()
def env(*, home: Home = None) -> None:
    """Print the addresses of the services that run as shell variables, for eval "$(onceward dev env)"."""
    services = _services(home)
    if not any(service.running for service in services.each):
        raise ConfigurationError(f"no services run in {services.home}: start them with `onceward dev up`")
    for name, service in services.named.items():
        if not service.running:
            typer.echo(f"{name} is not running: start it with `onceward dev up`", err=True)
    if any(service.running for service in services.each if service is not services.postgres):
        typer.echo(f"export KAFKA_BOOTSTRAP_SERVERS={shlex.quote(services.bootstrap_servers)}")
    if services.postgres is not None and services.postgres.running:
        typer.echo(f"export DATABASE_URL={shlex.quote(services.dsn)}")


def missing_packages() -> list[str]:
    """Return the packages that local services need, and that are not installed."""
    from onceward.testing.machine import SERVICE_PACKAGES  # noqa: PLC0415 - so that other commands work without the kit

    return [name for name in SERVICE_PACKAGES if find_spec(name) is None]


def _services(
    home: Path | None, *, kafka: bool = True, postgres: bool = True, brokers: int | None = None
) -> DevServices:
    with needing("dev-services,kafka"):
        from onceward.testing.services import services_at  # noqa: PLC0415 - so that other commands work without this extra
    return services_at(home, kafka=kafka, postgres=postgres, brokers=brokers, detached=True)


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not re.fullmatch(r"[\w.-]{1,249}", name, re.ASCII) or not re.fullmatch(r"[1-9]\d*", partitions or "1"):
        raise ConfigurationError(f"--topic {text!r} is not a topic: give NAME or NAME:PARTITIONS, such as orders:3")
    return name, int(partitions or 1)


def _table(text: str) -> str:
    if not re.fullmatch(r'[\w."]+\s*\(.*\)\s*', text, re.DOTALL):
        raise ConfigurationError(
            f"--table {text!r} is not a table: give 'NAME (COLUMNS)', such as 'paid (cents bigint)'"
        )
    return text


def _create_topics(services: DevServices, topics: list[tuple[str, int]]) -> Iterator[str]:
    if not topics:
        return
    from onceward.connectors.kafka.admin import cluster_of  # noqa: PLC0415 - an extra, as below
    from onceward.connectors.kafka.settings import KafkaSettings  # noqa: PLC0415

    cluster = cluster_of(KafkaSettings(services.bootstrap_servers, None))
    for name, partitions in topics:
        there = cluster.partitions_of(name)
        if not there:
            cluster.create_topic(name, partitions)
        yield f"topic {name}: {'is there' if there else 'created'}, partitions: {there or partitions}"


def _create_tables(services: DevServices, tables: list[str]) -> Iterator[str]:
    if not tables:
        return
    with needing("postgres"):
        import psycopg  # noqa: PLC0415
    with psycopg.connect(services.dsn) as connection:
        notices: list[str | None] = []
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        for table in tables:
            notices.clear()
            try:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}".encode())  # the user's own SQL
            except psycopg.Error as error:
                raise ConfigurationError(f"PostgreSQL refuses --table {table!r}: {text_of(error)}") from None
            yield f"table {table.partition('(')[0].strip()}: {'is there' if notices else 'created'}"


def _fetch_kafka(say: Console) -> None:
    from onceward.testing.services.jars import ensure_jars, jars_present  # noqa: PLC0415
    from onceward.testing.services.kafka import KAFKA_LOCK  # noqa: PLC0415

    if not jars_present(KAFKA_LOCK):
        with say.status("downloading Kafka's jars, only the first time …"):
            ensure_jars(KAFKA_LOCK)


def _show(services: DevServices, *, as_json: bool) -> None:
    facts: dict[str, Any] = {"home": str(services.home)}
    for name, service in services.named.items():
        pid, address = service.pid, service.address if service.folder.exists() else None
        facts[name.lower()] = {
            "running": pid is not None,
            "pid": pid,
            service.address_name: address,
            "log": str(service.log),
        }
        if not as_json:  # and no table: an address that is cut or wrapped cannot be copied
            typer.echo(f"{name}: {f'running, pid {pid}' if pid is not None else 'down'}")
            if address is not None:
                typer.echo(f"  {service.address_name} {address}\n  log {service.log}")
    if services.cluster is not None and services.cluster.folder.exists():
        facts["bootstrap_servers"] = services.bootstrap_servers
        if not as_json:
            typer.echo(f"All brokers:\n  bootstrap_servers {services.bootstrap_servers}")
    if as_json:
        print_json(facts)
