"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only show what would be done.")]
Pipeline = Annotated[str | None, typer.Option(help="Name of the pipeline; not needed if its log is in a folder.")]
BootstrapServers = Annotated[str | None, typer.Option(help="Bootstrap servers of Kafka.")]
KafkaConfig = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE|@FILE", help="A setting for the connection to Kafka, or a file of them; repeatable."
    ),
]
Dsn = Annotated[str | None, typer.Option(help="PostgreSQL's connection string.")]
LedgerSchema = Annotated[str | None, typer.Option(help="Schema of onceward's own tables in PostgreSQL.")]
