"""`onceward explain`: the end-to-end guarantee of a query or pipeline that is described and not started.

Nothing is started or written: queries are read from their plans, pipelines from their graphs, targets are asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.core.engine.graph import weakest
from onceward.core.engine.pipeline import Pipeline
from onceward.core.errors import ConfigurationError
from onceward.core.log.store import EXPLAINING
from onceward.core.sink import Guarantee

from ..doctor import Finding, Health, exit_code, show
from ..show import console
from .described import Described, described_pipeline, shared_names
from .targets import look_at_targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Explanation(msgspec.Struct, frozen=True):
    """What a query or pipeline guarantees.

    Attributes:
        name: Name of the pipeline or of the query; "query" if it has none.
        guarantee: What a reader of the targets sees of each record after any failure: that of the weakest part.
        findings: What was checked, in the order: the query or graph itself, then the decision log and the targets.
    """

    name: str
    guarantee: Guarantee
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0: exactly once. 1: weaker than that, or something does not work."""
        return int(self.guarantee is not Guarantee.EXACTLY_ONCE or exit_code(self.findings))

    def show(self) -> None:
        """Print it."""
        counts = [(health, sum(one.health is health for one in self.findings)) for health in Health]
        told = ", ".join(f"{count} {health}" for health, count in counts if count)
        console().print(f"{self.name}: {self.guarantee} ({told})", style="bold")
        show(self.findings)


def explain(
    query: DataFrame | DataStreamWriter | Pipeline,
    *sinks: Any,
    checkpoint: str | None = None,
    look: bool = True,
    **options: Any,
) -> Explanation:
    """Say what a query or pipeline guarantees, which part weakens it, and what to do. Nothing is started or written.

    Args:
        query: A DataStreamWriter (what `exactly_once` returns, or any other), a Pipeline of the embedded engine, or a
            streaming DataFrame, which takes the other arguments of `exactly_once`.
        *sinks: Where the rows of a DataFrame would go.
        checkpoint: Checkpoint folder of a DataFrame's query.
        look: Also ask the targets and the decision log. Otherwise only the plan and the settings are read.
        **options: Further arguments of `exactly_once`.

    Raises:
        ConfigurationError: It is none of these, or a setting is wrong.
    """
    with explaining():
        if sinks and hasattr(query, "isStreaming"):
            from onceward.connectors.spark import exactly_once  # noqa: PLC0415 - pyspark is an extra

            query = exactly_once(query, *sinks, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
        [told] = together([query], look=look)
    return told


@contextmanager
def explaining() -> Iterator[None]:
    """Inside, pipelines are built without opening stores or preparing targets."""
    before = EXPLAINING.set(True)
    try:
        yield
    finally:
        EXPLAINING.reset(before)


def together(queries: Sequence[Any], *, look: bool = True) -> list[Explanation]:
    """Explain the queries and pipelines of one program, and what they share and must not.

    Raises:
        ConfigurationError: One is neither a query nor a pipeline, or a setting is wrong.
    """
    described = [_described(query) for query in queries]
    return [_explained(one, shared_names(one, described), look=look) for one in described]


def _described(query: Any) -> Described:
    if isinstance(query, Pipeline):
        return described_pipeline(query)
    if not hasattr(query, "foreachBatch") or not hasattr(query, "_jwrite"):
        raise ConfigurationError(
            "explain takes a DataStreamWriter of a classic session (for example what exactly_once returns), a "
            f"Pipeline, or a streaming DataFrame and its sinks; got {type(query).__name__}"
        )
    from .query import described_query  # noqa: PLC0415 - pyspark is an extra

    return described_query(query)


def _explained(one: Described, more: Sequence[Finding], *, look: bool) -> Explanation:
    findings = (*one.findings, *more, *(look_at_targets(one) if look else []))
    levels = [finding.guarantee for finding in findings if finding.guarantee is not None]
    return Explanation(one.name, weakest(levels), findings)
