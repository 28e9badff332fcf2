"""`onceward status`: the state of each pipeline, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from onceward.core.errors import ConfigurationError
from onceward.core.log.store import local_folder
from onceward.core.operations.status import Options, PipelineStatus, pipeline_status, unreadable

from . import show
from .operate import Search  # noqa: TC001 - typer reads it
from .options import AsJson, with_group
from .ui.desk import Watch

if TYPE_CHECKING:
    from .ui.model import Watched


@with_group
def status(search: Search, *, as_json: AsJson = False) -> None:
    """Show the state of each pipeline, the one that needs somebody most first, and what to do.

    Of a folder, the pipelines in its subfolders are shown, too. If targets are given, the list also shows how many
    seconds are left to commit. Exit codes: 0 each pipeline runs or has ended; 1 one needs somebody, or a target did
    not answer; 2 wrong arguments.
    """
    if not search.store:
        raise ConfigurationError("give a decision log's store, a checkpoint folder or a folder of several as --store")
    watch = Watch(search.store, search.pipeline)
    watched = watch.look()
    if not watched and not watch.errors:
        raise ConfigurationError(f"there is no decision log in {', '.join(search.store)}")
    found = [_status_of(one, search) for one in watched]
    found += [unreadable("", ", ".join(search.store), error, _options("", search)) for error in watch.errors]
    found.sort(key=lambda one: (one.state.need, one.pipeline))
    show.statuses(found, as_json=as_json)
    raise typer.Exit(int(bool(search.unanswered) or not all(one.state.is_well for one in found)))


def _status_of(watched: Watched, search: Search) -> PipelineStatus:
    log = watched.log
    options = _options(watched.url, search, log.pipeline)
    if watched.shown.error:
        return unreadable(log.pipeline, watched.shown.store, watched.shown.error, options)
    waits = search.has_targets and log.view.undone is not None
    return pipeline_status(log, search.found([log]) if waits else (), options=options)


def _options(url: str, search: Search, pipeline: str = "") -> Options:
    store = ["--store", url or "STORE"]
    if pipeline and local_folder(url) is None:
        store += ["--pipeline", pipeline]
    targets = [word for at in search.at or () for word in ("--at", at)]
    targets += [word for setting in search.set_ or () for word in ("--set", setting)]
    targets += ["--sinks", search.sinks] if search.sinks is not None else []
    return Options(store=tuple(store), targets=tuple(targets)) if targets else Options(store=tuple(store))
