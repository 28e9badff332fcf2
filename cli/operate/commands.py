"""`onceward txn list | inspect | commit | abort` and `onceward checkpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onceward.core.checkpoint.recovery import TransactionStatus
from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import pairs

from . import show
from .logs import Log, open_log
from .resolve import abort_orphaned, abort_undecided, chosen, commit_decided
from .survey import survey

if TYPE_CHECKING:
    from .targets import Target

app = typer.Typer(no_args_is_help=True, help="List, inspect, commit and abort transactions that are in doubt.")

Store = Annotated[
    list[str] | None,
    typer.Option(help="URL of a decision log's store, or the checkpoint folder; repeatable for `list` and `inspect`."),
]
Pipeline = Annotated[str | None, typer.Option(help="Name of the pipeline; not needed if --store is a folder.")]
Servers = Annotated[str | None, typer.Option(help="Bootstrap servers of the Kafka cluster to search.")]
KafkaSetting = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting for the connection to Kafka; repeatable.")
]
DsnOption = Annotated[str | None, typer.Option(help="Connection string of the PostgreSQL database to search.")]
Schema = Annotated[str | None, typer.Option(help="Schema of onceward's own tables in PostgreSQL.")]
Sinks = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="The pipeline's own sinks, of any class, to import and search."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only show what would be done.")]


@app.command("list")
def list_(
    *,
    store: Store = None,
    pipeline: Pipeline = None,
    bootstrap_servers: Servers = None,
    kafka: KafkaSetting = None,
    dsn: DsnOption = None,
    ledger_schema: Schema = None,
    sinks: Sinks = None,
    as_json: AsJson = False,
) -> None:
    """List transactions under onceward's names that are open, prepared or awaiting commit, and what to do with each."""
    targets = _targets(bootstrap_servers, kafka, dsn, ledger_schema, sinks)
    show.table(survey(_logs(store, pipeline), targets, pipeline), as_json=as_json)


@app.command()
def inspect(
    transaction: Annotated[str, typer.Argument(help="Name of the transaction, as shown by `list`.")],
    *,
    store: Store = None,
    pipeline: Pipeline = None,
    bootstrap_servers: Servers = None,
    kafka: KafkaSetting = None,
    dsn: DsnOption = None,
    ledger_schema: Schema = None,
    sinks: Sinks = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known about one transaction."""
    targets = _targets(bootstrap_servers, kafka, dsn, ledger_schema, sinks)
    found = [one for one in survey(_logs(store, pipeline), targets, pipeline) if one.name == transaction]
    if not found:
        raise ConfigurationError(f"{transaction} is neither held by any of the targets given nor waiting for a commit")
    show.details(found, as_json=as_json)


@app.command()
def commit(
    *,
    store: Store = None,
    pipeline: Pipeline = None,
    bootstrap_servers: Servers = None,
    kafka: KafkaSetting = None,
    dsn: DsnOption = None,
    ledger_schema: Schema = None,
    sinks: Sinks = None,
    skip_lost: Annotated[
        str | None, typer.Option(metavar="WHY", help="Reason to skip what can no longer be committed; goes on record.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Commit all that is decided, and record it as completed, as the pipeline's next start would do.

    A run of the pipeline that is still alive is fenced and stops.
    """
    if skip_lost is not None and not skip_lost.strip():
        raise ConfigurationError("--skip-lost needs a reason: it goes on record")
    log = _one_log(store, pipeline, writing=yes)
    targets = _targets(bootstrap_servers, kafka, dsn, ledger_schema, sinks)
    decision = log.view.undone
    if decision is None:
        typer.echo(f"nothing to commit: no decision of pipeline {log.pipeline} waits")
        return
    found = survey([log], targets, log.pipeline)
    show.age(log)
    if not yes:
        show.table([one for one in found if one.status is TransactionStatus.DECIDED])
        typer.echo(f"would commit epoch {decision.epoch} of {log.pipeline}; {show.FENCES}. Say --yes to do it")
        return
    typer.echo(f"committing epoch {decision.epoch} of {log.pipeline}, as its newest writer …", err=True)
    done = commit_decided(log, decision, found, skip_lost=skip_lost)
    if done is None:
        typer.echo(f"nothing was left to commit: somebody else has ended epoch {decision.epoch} (`checkpoints`)")
        return
    given_up = f", {done.given_up} are given up, on record" if done.given_up else ""
    typer.echo(
        f"epoch {done.epoch} of {log.pipeline} is completed: {done.committed} transactions are committed{given_up}"
    )


@app.command()
def abort(
    transactions: Annotated[
        list[str] | None, typer.Argument(help="Names of the transactions; default: all in doubt.")
    ] = None,
    *,
    store: Store = None,
    pipeline: Pipeline = None,
    bootstrap_servers: Servers = None,
    kafka: KafkaSetting = None,
    dsn: DsnOption = None,
    ledger_schema: Schema = None,
    sinks: Sinks = None,
    orphaned: Annotated[
        bool, typer.Option("--orphaned", help="Their decision log is gone for good; requires their names.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Abort what no decision names; decided transactions are refused.

    A new writer is put into the decision log first, so that none of these can be decided any more: a run of the
    pipeline that is still alive is fenced and stops.
    """
    log = None if orphaned and not store else _one_log(store, pipeline, writing=yes)
    targets = _targets(bootstrap_servers, kafka, dsn, ledger_schema, sinks)
    mine = log.pipeline if log is not None else pipeline
    meant = chosen(survey([log] if log is not None else [], targets, mine), transactions or [], orphaned=orphaned)
    if not meant:
        typer.echo("nothing to abort")
        return
    if log is not None:
        show.age(log)
    if not yes:
        show.table(meant)
        typer.echo(f"would abort {len(meant)}; {show.ORPHANS if orphaned else show.FENCES}. Say --yes to do it")
        return
    if orphaned or log is None:
        outcomes = zip(meant, abort_orphaned(meant), strict=True)
        left = [f"{one.name}: {outcome.status}, {outcome.detail}" for one, outcome in outcomes if not outcome.done]
    else:
        aborted = {c.identity() for c in abort_undecided(log, meant).aborted}
        left = [one.name for one in meant if one.committable.identity() not in aborted]
    typer.echo(f"aborted {len(meant) - len(left)} of {len(meant)}")
    for words in left:
        typer.echo(f"not aborted: {words}", err=True)
    raise typer.Exit(int(bool(left)))


def checkpoints(*, store: Store = None, pipeline: Pipeline = None, as_json: AsJson = False) -> None:
    """List the epochs that a decision log still holds, the engine's checkpoints, and all data ever given up."""
    from .epochs import history  # noqa: PLC0415 - the embedded engine

    show.history(history(_one_log(store, pipeline)), as_json=as_json)


def _logs(stores: list[str] | None, pipeline: str | None, *, writing: bool = False) -> list[Log]:
    return [open_log(url, pipeline, writing=writing) for url in stores or []]


def _one_log(stores: list[str] | None, pipeline: str | None, *, writing: bool = False) -> Log:
    if len(stores or []) != 1:
        raise ConfigurationError("give the decision log's store, or the checkpoint folder, as --store, once")
    return _logs(stores, pipeline, writing=writing)[0]


def _targets(
    servers: str | None, kafka: list[str] | None, dsn: str | None, schema: str | None, sinks: str | None
) -> list[Target]:
    from .targets import KafkaTarget, PostgresTarget, SinksTarget  # noqa: PLC0415 - Arrow, and extras

    settings = pairs("--kafka", kafka)
    if (settings and servers is None) or (schema is not None and dsn is None):
        raise ConfigurationError("--kafka needs --bootstrap-servers, and --ledger-schema needs --dsn")
    targets: list[Target] = [] if sinks is None else [SinksTarget.load(sinks)]
    try:
        if servers is not None:
            targets.append(KafkaTarget(servers, settings))
        if dsn is not None:
            targets.append(PostgresTarget(dsn, schema))
    except ModuleNotFoundError as error:
        extra = "kafka" if servers is not None and "kafka" in str(error.name) else "postgres"
        raise ConfigurationError(f"{error.name} is needed: pip install 'onceward[{extra}]'") from error
    if not targets:
        raise ConfigurationError(
            "say where to look: --bootstrap-servers, --dsn, or the pipeline's own --sinks module:name"
        )
    return targets
