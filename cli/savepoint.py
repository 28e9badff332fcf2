"""`onceward savepoint`: copies of a Spark query's checkpoint and decision log, and what may be restored of them."""

from __future__ import annotations

from typing import Annotated

import typer

from onceward.core.engine.state.storage import locate
from onceward.core.errors import ConfigurationError
from onceward.operations import (
    create_savepoint,
    delete_savepoint,
    open_log,
    plan_restore,
    plan_savepoint,
    request_savepoint,
    restore_savepoint,
    savepoint_at,
    savepoints,
)

from . import show
from .shared_options import AsJson, Pipeline, Yes  # noqa: TC001 - typer reads them

app = typer.Typer(no_args_is_help=True, help="Make, list, restore and delete savepoints.")

Folder = Annotated[str, typer.Argument(help="Folder of the savepoint: a path, or a URL such as s3://bucket/folder.")]
Store = Annotated[str | None, typer.Option(help="URL of the decision log's store; default: in the checkpoint.")]


@app.command()
def create(
    folder: Folder,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint folder of a Spark query, which must be stopped. Without it: a running pipeline of "
            "the embedded engine, by its --store."
        ),
    ] = None,
    store: Store = None,
    pipeline: Pipeline = None,
    retire: Annotated[
        bool,
        typer.Option("--retire", help="Spark: the query moves. It can no longer be started from its old checkpoint."),
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Engine: commit the rows before it, and end the run.")] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Engine: like --stop, but functions first emit the rows that they hold.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1.0, help="Engine: seconds to wait for the savepoint.")] = 60.0,
    yes: Yes = False,
) -> None:
    """Copy a stopped Spark query's checkpoint and decision log, or have a running engine pipeline make a savepoint."""
    if checkpoint is None:
        if store is None or retire:
            raise ConfigurationError("give a Spark query's --checkpoint, or the --store of a running engine pipeline")
        log = open_log(store, pipeline)
        if not yes:
            end = " and end" if stop or drain else ""
            show.would(f"ask the running pipeline {log.pipeline} to make a savepoint{end}")
            return
        savepoint = request_savepoint(log, folder, stop=stop, drain=drain, timeout=timeout)
        typer.echo(f"savepoint {savepoint}")
        return
    if stop or drain:
        raise ConfigurationError(
            "--stop and --drain are for the embedded engine: stop the Spark query, then repeat this"
        )
    if retire and store is not None:
        raise ConfigurationError("--retire is for a log in the checkpoint: a log in a store of its own stays there")
    _create(folder, checkpoint, store, pipeline, retire=retire, yes=yes)


def _create(folder: str, checkpoint: str, store: str | None, pipeline: str | None, *, retire: bool, yes: bool) -> None:
    if not yes:
        plan = plan_savepoint(checkpoint, folder, store=store, pipeline=pipeline)
        what = f"{plan.checkpoint} with epoch {plan.epoch} of {plan.pipeline}"
        show.would(f"copy {what} to {locate(folder)}; {show.FENCES}")
        return
    savepoint = create_savepoint(checkpoint, folder, store=store, pipeline=pipeline, retire=retire)
    ended = ". The query can no longer be started from its old checkpoint: restore it there" if retire else ""
    show.console().print(
        f"savepoint of epoch {savepoint.epoch} of {savepoint.pipeline}: {len(savepoint.files)} files, "
        f"{savepoint.size} bytes{ended}"
    )


@app.command("list")
def list_savepoints(
    folder: Annotated[str, typer.Argument(help="A savepoint, or the folder that savepoints are in.")],
    *,
    as_json: AsJson = False,
) -> None:
    """List savepoints: of which pipeline and epoch, when they were made, and where they were restored to."""
    savepoints_ = savepoints(folder)
    if as_json:
        show.print_json(savepoints_)
        return
    out = show.console()
    for one in savepoints_:
        out.print(one.place, style="bold")
        epoch = f", epoch {one.epoch}, {one.size} bytes" if one.epoch is not None else ""
        date = f", made {one.made}" if one.made else ""
        retired = ", the pipeline moves with it" if one.retired else ""
        out.print(f"  {one.kind}: pipeline {one.pipeline or '?'}{epoch}{date}{retired}")
        for more in (f"restored to {one.restored_to}" if one.restored_to else "", one.problem):
            if more:
                out.print(f"  {more}")
    if not savepoints_:
        out.print("no savepoints")


@app.command("restore")
def restore_(
    folder: Folder,
    *,
    checkpoint: Annotated[str, typer.Option(help="New checkpoint folder for the query; it must be empty or missing.")],
    store: Store = None,
    pipeline: Pipeline = None,
    rewind: Annotated[
        str | None,
        typer.Option(metavar="WHY", help="Go back although epochs were written since, and record this reason."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Restore a Spark query's savepoint into a new folder, at which the query is started next.

    If the sinks have gone on since the savepoint, this is refused without --rewind: rows would be written twice.
    """
    if rewind is not None and not rewind.strip():
        raise ConfigurationError("--rewind needs a reason, which is recorded in the decision log")
    plan = plan_restore(folder, checkpoint, store=store, pipeline=pipeline, rewind=rewind)
    if not yes:
        show.would(plan.describe())
        return
    restore_savepoint(plan)
    epoch = plan.saved.manifest.epoch
    typer.echo(f"restored epoch {epoch}: start the query with checkpoint {plan.checkpoint.root}")


@app.command()
def delete(folder: Folder, *, yes: Yes = False) -> None:
    """Delete a savepoint, or what an interrupted copy has left of one."""
    savepoint = savepoint_at(folder)
    only = savepoint.retired and not savepoint.restored_to
    left = (
        f", which is all that is left of pipeline {savepoint.pipeline}: it moves, and was never restored"
        if only
        else ""
    )
    if not yes:
        show.would(f"delete {savepoint.place} ({savepoint.kind}, pipeline {savepoint.pipeline}){left}")
        return
    delete_savepoint(folder)
    typer.echo(f"deleted {savepoint.place}")
