"""The guarantee of a pipeline of the embedded engine, from its graph and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.engine.graph import of_source, weaker_parts
from onceward.core.engine.state.memory import MemoryBackend
from onceward.core.log.store import MemoryStore
from onceward.core.sink import Guarantee

from ..doctor import Finding, failed, ok, warning
from .described import Described, part_finding, sink_findings, store_url

if TYPE_CHECKING:
    from onceward.core.engine.pipeline import Pipeline
    from onceward.core.log import LogStore

_REPLAYED = "read again identically from a stored position"


def described_pipeline(pipeline: Pipeline) -> Described:
    """What a pipeline's graph and settings say.

    Raises:
        ConfigurationError: The graph is wrong.
    """
    graph, setup = pipeline.graph, pipeline.setup
    graph.check()
    sources = [(operator.uid, operator.what) for operator in graph.of_kind("source")]
    sinks = [operator.what for operator in graph.of_kind("sink")]
    mode = [part for part in weaker_parts(graph, setup.config) if part.name == "the engine"]
    return Described(
        name=pipeline.name,
        pipeline=pipeline.name,
        store=store_url(setup.store),
        policy=setup.policy,
        sinks=sinks,
        sources=[source for _, source in sources],
        findings=[
            *[part_finding("source", of_source(uid, source), uid, _REPLAYED) for uid, source in sources],
            *[part_finding("engine", part, "", "") for part in mode],
            _checkpoints(pipeline),
            *_store(setup.store),
            *sink_findings(sinks, setup.policy),
        ],
    )


def _store(store: LogStore) -> list[Finding]:
    """A store with a URL is looked at with the targets."""
    if store_url(store) is not None:
        return []
    if not isinstance(store, MemoryStore):
        return [ok("decision log", store.describe())]
    told = "in memory: a new process does not know what was decided, and reads its input again"
    return [warning("decision log", told, "give the pipeline a store", guarantee=Guarantee.AT_LEAST_ONCE)]


def _checkpoints(pipeline: Pipeline) -> Finding:
    config, backend = pipeline.setup.config, pipeline.setup.backend
    bounded = all(operator.what.bounded for operator in pipeline.graph.of_kind("source"))
    if config.interval is None and not bounded:
        told = "none is made: without an interval the end of the input is the only one, and a source never ends"
        return failed("checkpoints", f"{told}, so no rows become visible", "CheckpointConfig(interval=1.0)")
    often = "at the end of the input" if config.interval is None else f"every {config.interval:g} s"
    storage = getattr(backend, "storage", None)
    where = "in the decision log" if isinstance(backend, MemoryBackend) else f"in {storage.root if storage else '?'}"
    if storage is not None and "://" not in storage.root:
        advice = "suitable only if the job always runs on this machine; otherwise use a shared folder or a bucket"
        return warning("checkpoints", f"{often}, {where}", advice)
    return ok("checkpoints", f"{often}, {where}")
