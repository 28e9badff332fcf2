"""What a query or a pipeline says of itself, in the form that both have in common.

A pipeline of the embedded engine says it by its graph and its settings, which are read here; the adapter for Spark
reads a query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

from ..checkpoint import CommitPolicy, OnLost
from ..checkpoint.subtask import DirectlyWritten
from ..contract.findings import Finding, failed, ok, warning
from ..contract.sink import Guarantee
from ..engine.graph import OF_MODE, of_sink, of_source
from ..engine.state.memory import MemoryBackend
from ..log.store import DirectoryStore, MemoryStore, UnopenedStore, local_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine.graph import WeakPart
    from ..engine.pipeline import Pipeline
    from ..log import LogStore

_ADVICE: Final = {
    Guarantee.AT_MOST_ONCE: "use a source that can be read again (a ResettableSource), or a target that keeps its rows",
    Guarantee.AT_LEAST_ONCE: "use a sink with two-phase commit, and a source of committed records only",
    Guarantee.EFFECTIVELY_ONCE: "readers must tolerate older values for a while; else use a sink with two-phase commit",
}
_REPLAYED: Final = "read again identically from a stored position"


@dataclass
class Described:
    """The facts that are known without a question to any server.

    Attributes:
        name: Name of the query or pipeline, for people.
        pipeline: Name of the pipeline, if it is given.
        store: URL of the decision log's store, or the checkpoint folder; None if there is none, or it has no URL.
        checkpoint: Location of the checkpoint; None if it is not known.
        policy: Policy by which a commit is tried again.
        sinks: All sinks of onceward.
        sources: Sources of onceward that are known as objects.
        findings: Findings of the checks so far.
    """

    name: str
    pipeline: str | None = None
    store: str | None = None
    checkpoint: str | None = None
    policy: CommitPolicy = field(default_factory=CommitPolicy)
    sinks: list[Any] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def store_url(store: LogStore | str | PathLike[str]) -> str | None:
    """Return the URL by which a store can be looked at; None if it has no URL."""
    if isinstance(store, str | PathLike):
        return fspath(store)
    if isinstance(store, UnopenedStore):
        return store.url
    return str(store.path) if isinstance(store, DirectoryStore) else None


def part_finding(check: str, part: WeakPart | None, name: str, fine: str) -> Finding:
    """Report a source, a sink or the engine: as `fine` if it is exactly-once, otherwise with its weaker guarantee."""
    if part is None:
        return ok(check, fine, name)
    return warning(check, f"{part.level}: it {part.why}", _ADVICE[part.level], name, part.level)


def sink_findings(sinks: Sequence[Any], policy: CommitPolicy, *, heals: bool = False) -> list[Finding]:
    """Return the guarantees of sinks, and the fate of rows that can no longer be committed.

    Args:
        sinks: Sinks of the query.
        policy: The query's policy for commits.
        heals: True if the query can compute a decided epoch again, to write only the rows of it that were lost.
    """
    findings = []
    for sink in sinks:
        kind = type(sink.sink if isinstance(sink, DirectlyWritten) else sink).__name__
        findings.append(part_finding("sink", of_sink(sink.name, sink.guarantee), sink.name, f"exactly-once ({kind})"))
    if policy.on_lost is OnLost.SKIP:
        text = "skip: rows that can no longer be committed are left out, with an audit record"
        findings.append(
            warning("on_lost", text, "use 'fail', and decide case by case (onceward txn commit --skip-lost)")
        )
    if policy.on_lost is OnLost.REPLAY:
        findings.append(ok("on_lost", f"replay: {_replayed(sinks, heals=heals)}"))
    return findings


def _replayed(sinks: Sequence[Any], *, heals: bool) -> str:
    """Report the rows that can be written again if a target loses them after their decision."""
    whole = "an epoch of which nothing is visible yet is written again"
    if not heals:
        return f"{whole}; if some of it is visible, the run stops"
    two_phase = [sink for sink in sinks if not isinstance(sink, DirectlyWritten)]
    without = [sink.name for sink in two_phase if not sink.proof]
    healed = [sink.name for sink in two_phase if sink.name not in without]
    unless = " (unless it has a union column, which cannot be hashed; column types are not looked at here)"
    if not without:
        return f"{whole}; if some of it is visible, only what was lost{unless}"
    parts = f", and only what was lost for {', '.join(healed)}{unless}" if healed else ""
    return (
        f"{whole}{parts}; for {', '.join(without)} the query stops then, because the decision log holds no hash of the "
        "rows to compare with"
    )


def shared_names(one: Described, every: Sequence[Described]) -> list[Finding]:
    """Check whether another query of the same program has the same checkpoint, decision log or pipeline name."""
    findings = []
    for what in ("checkpoint", "store", "pipeline"):
        value = getattr(one, what)
        same = [other.name for other in every if other is not one and getattr(other, what) == value]
        apart = what == "store" and local_folder(value or "") is None  # by the pipelines' names
        if value is not None and same and not apart:
            text = f"{what} {value} is also that of {', '.join(same)}"
            findings.append(
                failed("names", text, f"give each query a {what} of its own: otherwise they fence each other")
            )
    return findings


def described_pipeline(pipeline: Pipeline) -> Described:
    """Describe a pipeline by its graph and settings.

    Raises:
        ConfigurationError: The graph is wrong.
    """
    graph, setup = pipeline.graph, pipeline.setup
    graph.check()
    sources = [(operator.uid, operator.what) for operator in graph.of_kind("source")]
    sinks = [operator.what for operator in graph.of_kind("sink")]
    mode = OF_MODE.get(setup.config.mode)
    return Described(
        name=pipeline.name,
        pipeline=pipeline.name,
        store=store_url(setup.store),
        policy=setup.policy,
        sinks=sinks,
        sources=[source for _, source in sources],
        findings=[
            *[part_finding("source", of_source(uid, source), uid, _REPLAYED) for uid, source in sources],
            *([part_finding("engine", mode, "", "")] if mode is not None else []),
            _checkpoints(pipeline),
            *_store(setup.store),
            *sink_findings(sinks, setup.policy),
        ],
    )


def _store(store: LogStore) -> list[Finding]:
    """Report a store without URL; one with a URL is checked with the targets."""
    if store_url(store) is not None:
        return []
    if not isinstance(store, MemoryStore):
        return [ok("decision log", store.describe())]
    text = "in memory: a new process does not know what was decided, and reads its input again"
    return [warning("decision log", text, "give the pipeline a store", guarantee=Guarantee.AT_LEAST_ONCE)]


def _checkpoints(pipeline: Pipeline) -> Finding:
    config, backend = pipeline.setup.config, pipeline.setup.backend
    bounded = all(operator.what.bounded for operator in pipeline.graph.of_kind("source"))
    if config.interval is None and not bounded:
        text = "none is made: without an interval, the only one is at the end of the input, and a source never ends"
        return failed("checkpoints", f"{text}, so no rows become visible", "CheckpointConfig(interval=1.0)")
    often = "at the end of the input" if config.interval is None else f"every {config.interval:g} s"
    storage = backend.storage
    where = "in the decision log" if isinstance(backend, MemoryBackend) else f"in {storage.root if storage else '?'}"
    if storage is not None and "://" not in storage.root:
        advice = "suitable only if the job always runs on this machine; otherwise use a shared folder or a bucket"
        return warning("checkpoints", f"{often}, {where}", advice)
    return ok("checkpoints", f"{often}, {where}")
