"""What a reader of the targets sees of each record: the weakest of source, engine and sink.

    source kind, sink kind     direct          idempotent         write-ahead log    two-phase
    live (not resettable)      at-most-once    at-most-once       at-most-once       at-most-once
    resettable                 at-least-once   effectively-once   as the sink says   exactly-once

in the engine's exactly-once mode. In at-least-once mode nothing is better than at-least-once; in at-most-once mode
nothing is better than at-most-once. With no checkpoints the input's end is the only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..sink import Guarantee
from ..source import ResettableSource
from .config import Mode

if TYPE_CHECKING:
    from .config import CheckpointConfig
    from .graph import Graph, Operator

_ORDER: Final = (
    Guarantee.AT_MOST_ONCE,
    Guarantee.AT_LEAST_ONCE,
    Guarantee.EFFECTIVELY_ONCE,
    Guarantee.EXACTLY_ONCE,
)
"""From weak to strong. At-most-once is put first: a record that is lost cannot be told from one that never was."""


class EndToEnd(NamedTuple):
    """A pipeline's guarantee.

    Attributes:
        level: That of the weakest part.
        why: What weakens it; empty for exactly-once.
    """

    level: Guarantee
    why: tuple[str, ...]


def end_to_end(graph: Graph, config: CheckpointConfig) -> EndToEnd:
    """The weakest of all parts, and which parts are weaker than exactly-once."""
    parts = [_of_mode(config.mode)]
    parts += [_of_source(operator) for operator in graph.of_kind("source")]
    parts += [_of_sink(operator) for operator in graph.of_kind("sink")]
    level = min((level for level, _ in parts), key=_ORDER.index)
    return EndToEnd(level, tuple(why for part, why in parts if part is not Guarantee.EXACTLY_ONCE))


def _of_mode(mode: Mode) -> tuple[Guarantee, str]:
    match mode:
        case Mode.EXACTLY_ONCE:
            return Guarantee.EXACTLY_ONCE, ""
        case Mode.AT_LEAST_ONCE:
            return Guarantee.AT_LEAST_ONCE, "the engine does not align barriers (mode at-least-once)"
        case Mode.AT_MOST_ONCE:
            return Guarantee.AT_MOST_ONCE, "the engine reads nothing again after a failure (mode at-most-once)"


def _of_source(operator: Operator) -> tuple[Guarantee, str]:
    source = operator.what
    if not isinstance(source, ResettableSource):
        return (
            Guarantee.AT_MOST_ONCE,
            f"source {operator.uid} cannot be read again, so a failure loses what was in progress",
        )
    if source.weakness:
        return Guarantee.AT_LEAST_ONCE, f"source {operator.uid} {source.weakness}"
    return Guarantee.EXACTLY_ONCE, ""


def _of_sink(operator: Operator) -> tuple[Guarantee, str]:
    level: Guarantee = operator.what.guarantee
    if level is Guarantee.EXACTLY_ONCE:
        return level, ""
    if level is Guarantee.EFFECTIVELY_ONCE:
        return level, f"sink {operator.uid} is idempotent, not transactional: after a failure older values may show"
    return level, f"sink {operator.uid} shows rows as they are written, and again after a failure"
