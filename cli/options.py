"""Options that several commands have, and what they name: targets, a pipeline's own sinks.

Kafka and PostgreSQL can be asked for everything under onceward's names, of any pipeline, and need no setting of the
sink that wrote: a handle, a gid or a staged row says all that commit and abort want.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.core.errors import ConfigurationError
from onceward.core.kit.extras import needing
from onceward.core.kit.options import pairs
from onceward.core.operations.targets import Target, sinks_target
from onceward.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from onceward.core.transaction import Committable

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only show what would be done.")]
Pipeline = Annotated[str | None, typer.Option(help="Name of the pipeline; not needed if its log is in a folder.")]


@dataclass(kw_only=True)
class Access:
    """How Kafka and PostgreSQL are reached."""

    bootstrap_servers: Annotated[str | None, typer.Option(help="Bootstrap servers of Kafka.")] = None
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|@FILE", help="A setting for the connection to Kafka, or a file of them; repeatable."
        ),
    ] = None
    dsn: Annotated[str | None, typer.Option(help="PostgreSQL's connection string.")] = None
    ledger_schema: Annotated[str | None, typer.Option(help="Schema of onceward's own tables in PostgreSQL.")] = None

    def __post_init__(self) -> None:
        self.config = pairs("--kafka", self.kafka)

    def check(self) -> None:
        """Refuse an option without the one that it belongs to.

        Raises:
            ConfigurationError: There is one.
        """
        if self.config and self.bootstrap_servers is None:
            raise ConfigurationError("--kafka needs --bootstrap-servers")
        if self.ledger_schema is not None and self.dsn is None:
            raise ConfigurationError("--ledger-schema needs --dsn")


def with_group(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the fields of one parameter, which is a dataclass, as options: a subclass's own come first."""
    parameters = inspect.signature(command, eval_str=True).parameters
    [group] = [name for name, one in parameters.items() if is_dataclass(one.annotation)]
    kind: Any = parameters[group].annotation
    fields = inspect.signature(kind, eval_str=True).parameters
    options = [fields[name] for name in sorted(fields, key=lambda name: name not in kind.__annotations__)]

    def run(**given: Any) -> None:
        command(**{group: kind(**{one.name: given.pop(one.name) for one in options})}, **given)

    taken = [each for name, one in parameters.items() for each in (options if name == group else [one])]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in taken}
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in taken]
    vars(run)["__signature__"] = inspect.Signature(keyword)
    return run


def server_targets(access: Access) -> list[Target]:
    """The Kafka cluster and the PostgreSQL database that are named.

    Raises:
        ConfigurationError: An extra is not installed.
    """
    targets = []
    if access.bootstrap_servers is not None:
        with needing("kafka"):
            targets.append(_kafka(access.bootstrap_servers, access.config))
    if access.dsn is not None:
        with needing("postgres"):
            targets.append(_postgres(access.dsn, access.ledger_schema))
    return targets


def _kafka(bootstrap_servers: str, config: Mapping[str, str]) -> Target:
    from onceward.connectors.kafka.admin import check_reachable, cluster_of  # noqa: PLC0415 - an extra
    from onceward.connectors.kafka.ownership import open_names, sinks_of  # noqa: PLC0415
    from onceward.connectors.kafka.settings import KafkaSettings  # noqa: PLC0415
    from onceward.connectors.kafka.sink import KafkaSink  # noqa: PLC0415
    from onceward.connectors.kafka.transaction import KIND, Prepared  # noqa: PLC0415

    settings = KafkaSettings(bootstrap_servers, config)

    def names(_: Collection[str]) -> Iterable[tuple[str, str]]:
        check_reachable(settings)
        return {scope[:2] for scope in open_names(cluster_of(settings).transactions)}

    def expires(committables: Sequence[Committable]) -> list[float | None]:
        prepared = [Prepared.of(committable) for committable in committables]
        names = [one.handle.transactional_id for one in prepared if one is not None]
        described = cluster_of(settings).transactions.describe(names)
        return [
            None if one is None else one.ends_at(described[one.handle.transactional_id].timeout_ms) for one in prepared
        ]

    return Target(
        expires=expires,
        title=f"Kafka at {bootstrap_servers}",
        names=names,
        known=lambda pipeline: sinks_of(cluster_of(settings).transactions, pipeline),
        holds=lambda kind, _: kind == KIND,
        sink=lambda name: KafkaSink(name, bootstrap_servers=bootstrap_servers, config=config),
    )


def _postgres(dsn: str, ledger_schema: str | None) -> Target:
    from onceward.connectors.database.sinks import PostgresSink  # noqa: PLC0415 - an extra
    from onceward.connectors.database.target import PREPARED, STAGED, Url  # noqa: PLC0415

    schema: dict[str, Any] = {} if ledger_schema is None else {"ledger_schema": ledger_schema}

    def sink(name: str) -> PostgresSink:
        return PostgresSink(name, table="any", dsn=dsn, **schema)  # gid and staged row name what they are for

    return Target(
        title=f"PostgreSQL {Url.from_dsn(dsn)}",
        names=lambda _: {scope[:2] for scope in sink("any").open_names()},
        known=lambda pipeline: sink("any").known_sinks(pipeline),
        holds=lambda kind, _: kind in (PREPARED, STAGED),
        sink=sink,
    )


def load_sinks(reference: str) -> Target:
    """Import the pipeline's own sinks: `module:name` of a sink, of several, or of a function that returns them.

    Raises:
        ConfigurationError: There is no such thing, it is none, or its import fails.
    """
    found = imported("--sinks", reference, called=True)
    sinks = [found] if isinstance(found, Sink) else found
    if not isinstance(sinks, list | tuple) or not all(isinstance(sink, Sink) for sink in sinks):
        raise ConfigurationError(f"{reference} is neither a sink nor a list of sinks: {type(found).__name__}")
    return sinks_target(sinks, f"sinks of {reference}")


def imported(option: str, reference: str, *, called: bool = False) -> Any:
    """Import the `module:name` of an option, from the current folder first, and if `called`, call it if possible.

    Raises:
        ConfigurationError: There is no such thing, or the module or the call fails.
    """
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise ConfigurationError(f"{option} takes module:name, not {reference!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
        return found() if called and callable(found) else found
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"cannot import {reference}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
