"""`onceward status`: the state of each pipeline, and what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceward.core.errors import ConfigurationError, OncewardError, named_text_of, text_of
from onceward.core.log.store import local_folder
from onceward.core.operations.status import unreadable
from onceward.operations import PipelineState, open_log, pipeline_status

from . import show
from .advice import with_advice
from .operate import Search  # noqa: TC001 - typer reads it
from .shared_options import AsJson, with_group
from .ui.desk import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onceward.operations import PipelineStatus

    from .ui.model import Watched


_PATIENCE: Final = 15.0
"""Seconds to wait for a store that is no folder."""
AsMetrics = Annotated[
    bool, typer.Option("--metrics", help="Print metrics, for the textfile collector of Prometheus' node exporter.")
]


@with_group
def status(search: Search, *, as_json: AsJson = False, as_metrics: AsMetrics = False) -> None:
    """Show the state of each pipeline, the one that needs attention most first, and what to do.

    Of a folder, the pipelines in its subfolders are shown, too. If targets are given, the list also shows how many
    seconds are left to commit. Exit codes: 0 each pipeline runs or has ended; 1 one needs attention, or a target did
    not answer; 2 wrong arguments.
    """
    if not search.store:
        raise ConfigurationError("give a decision log's store, a checkpoint folder or a folder of several as --store")
    if search.has_targets:
        search.targets()  # options that are wrong end the command, and not the judgment of a pipeline
    for url in search.store if search.pipeline is None else ():
        if local_folder(url) is None:
            open_log(url)  # which says that it needs the name of a pipeline
    watch = Watch(search.store, search.pipeline, patience=_PATIENCE)
    watched = watch.look()
    if not watched and not watch.unreadable:
        raise ConfigurationError(f"there is no decision log in {', '.join(search.store)}")
    statuses = [_status_of(one, search) for one in watched]
    words = search.target_words
    statuses += [
        with_advice(unreadable(watch.name_at(store), store, error), store, words)
        for store, error in watch.unreadable.items()
    ]
    statuses.sort(key=lambda one: one.urgency)
    if as_metrics:
        typer.echo("\n".join(_metrics(statuses)))
    else:
        _print(statuses, as_json=as_json)
    raise typer.Exit(int(bool(search.unanswered) or any(one.needs_somebody for one in statuses)))


def _print(statuses: Sequence[PipelineStatus], *, as_json: bool) -> None:
    """Print the state of each pipeline, a line with what is the matter, and what to do."""
    if as_json:
        show.print_json(statuses)
        return
    names = Counter(one.pipeline for one in statuses)
    for one in statuses:
        show.print_status(one, with_store=names[one.pipeline] > 1)


def _metrics(statuses: Sequence[PipelineStatus]) -> Iterator[str]:
    """Yield the states in Prometheus' text format: 1 for the state that a pipeline is in, 0 for each other one.

    Written without prometheus-client, so that a timer on any machine can run it without the extra `prometheus`.
    """
    yield "# HELP onceward_pipeline_state Whether the pipeline is in this state (docs: operations)"
    yield "# TYPE onceward_pipeline_state gauge"
    for one in statuses:
        for state in PipelineState:
            labels = {"pipeline": one.pipeline, "store": one.store, "state": str(state)}
            yield f"onceward_pipeline_state{{{_labels(labels)}}} {int(one.state is state)}"
    yield "# HELP onceward_pipeline_expires_in_seconds Seconds until a target ends transactions that wait for a commit"
    yield "# TYPE onceward_pipeline_expires_in_seconds gauge"
    for one in statuses:
        if one.expires_in is not None:
            labels = {"pipeline": one.pipeline, "store": one.store}
            yield f"onceward_pipeline_expires_in_seconds{{{_labels(labels)}}} {one.expires_in}"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def _status_of(watched: Watched, search: Search) -> PipelineStatus:
    log, error = watched.log, watched.shown.error
    if not error:
        try:
            waits = search.has_targets and log.view.undone is not None
            transactions = search.found([log]) if waits else ()
        except Exception as raised:  # noqa: BLE001 - whatever others wrote into the log, it hides no other pipeline
            error = text_of(raised) if isinstance(raised, OncewardError) else named_text_of(raised)
    status = unreadable(log.pipeline, watched.shown.store, error) if error else pipeline_status(log, transactions)
    return with_advice(status, watched.url, search.target_words)
