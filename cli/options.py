"""Options that several commands have, one by one and in groups."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import pairs

if TYPE_CHECKING:
    from collections.abc import Callable

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

    @cached_property
    def config(self) -> dict[str, str]:
        """Settings of the connection to Kafka, under librdkafka's names."""
        return pairs("--kafka", self.kafka)

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
