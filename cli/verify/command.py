"""`onceward verify`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import pairs

from ..operate.logs import open_log


def verify(
    store: Annotated[
        str | None,
        typer.Argument(help="The checkpoint folder, or the URL of the decision log's store; none: compare by --key."),
    ] = None,
    *,
    target: Annotated[
        list[str],
        typer.Option(
            metavar="[SINK=]PLACE",
            help="Where a sink wrote to: kafka:TOPIC, postgres:TABLE, sql:TABLE, redis:KEY or files:FOLDER; repeatable."
            " SINK may be left out if there is one.",
        ),
    ],
    source: Annotated[
        str | None, typer.Option(metavar="PLACE", help="What the pipeline reads: to name the rows that differ.")
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="Function from a batch of the source's rows to the sink's. Default: copies, or the columns of JSON.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Column that identifies a row.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="A:B", help="Only epochs from A to B.")] = None,
    pipeline: Annotated[str | None, typer.Option(help="Name of the pipeline; a folder tells it by itself.")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Bootstrap servers of Kafka.")] = None,
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|@FILE", help="A setting for the connection to Kafka, or a file of them; repeatable."
        ),
    ] = None,
    dsn: Annotated[str | None, typer.Option(help="PostgreSQL's connection string.")] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Where sql:TABLE or redis:KEY is: SQLAlchemy's URL of a database, or a redis://… URL."),
    ] = None,
    ledger_schema: Annotated[str | None, typer.Option(help="Schema of onceward's own tables in PostgreSQL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove that targets still hold exactly the rows that were written, or name the epochs and rows that differ.

    With a decision log, each target is read again and compared with the number and the hash of the rows that each epoch
    recorded. Without one, a source and a target are compared by key. Changes nothing.
    """
    from . import show  # noqa: PLC0415 - Arrow and numpy
    from .places import Access, Place, load_function  # noqa: PLC0415
    from .rows import compared  # noqa: PLC0415
    from .run import Question, audits  # noqa: PLC0415

    access = Access(bootstrap_servers, pairs("--kafka", kafka), dsn, url, ledger_schema)
    origin = Place.parse(source, access) if source is not None else None
    function = load_function(mapping) if mapping is not None else None
    if store is None:
        if origin is None or len(target) != 1 or epochs is not None:
            raise ConfigurationError(
                "without a decision log give --source, one --target, and no --epochs; with one, its checkpoint folder "
                "or store as the argument"
            )
        found = compared(origin, Place.parse(target[0], access), function, key)
        show.comparison(found, as_json=as_json)
        raise typer.Exit(int(not found.exact))
    question = Question(open_log(store, pipeline), _range(epochs), origin, function, key)
    told = audits(question, target, access)
    show.audits(told, as_json=as_json)
    raise typer.Exit(int(not all(audit.proven for audit in told)))


def _range(text: str | None) -> range | None:
    """Of A:B, either of which may be left out; a number alone is one epoch."""
    if text is None:
        return None
    first, mark, last = text.partition(":")
    try:
        wanted = range(int(first or 0), int(last or (sys.maxsize if mark else first)) + 1)
    except ValueError:
        wanted = range(0)
    if not wanted:
        raise ConfigurationError(f"--epochs takes A:B, two numbers, the smaller one first, not {text!r}")
    return wanted
