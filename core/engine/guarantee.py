"""What a reader of the targets sees of each record: the weakest of source, engine and sink.

    source kind, sink kind     direct          idempotent         write-ahead log    two-phase
    live (not resettable)      at-most-once    at-most-once       at-most-once       at-most-once
    resettable                 at-least-once   effectively-once   as the sink says   exactly-once

in the engine's exactly-once mode. In at-least-once mode nothing is better than at-least-once; in at-most-once mode
nothing is better than at-most-once. With no checkpoints the input's end is the only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .config import Mode
from .graph import is_two_phase
from .ports import Resettable

if TYPE_CHECKING:
    from .config import CheckpointConfig
    from .graph import Graph, Operator

EXACTLY_ONCE: Final = "exactly-once"
EFFECTIVELY_ONCE: Final = "effectively-once"
AT_LEAST_ONCE: Final = "at-least-once"
AT_MOST_ONCE: Final = "at-most-once"
_ORDER: Final = (AT_MOST_ONCE, AT_LEAST_ONCE, EFFECTIVELY_ONCE, EXACTLY_ONCE)
"""From weak to strong. At-most-once is put first: a record that is lost cannot be told from one that never was."""


class EndToEnd(NamedTuple):
    """A pipeline's guarantee.

    Attributes:
        level: exactly-once, effectively-once, at-least-once or at-most-once.
        why: What weakens it; empty for exactly-once.
    """

    level: str
    why: tuple[str, ...]


def end_to_end(graph: Graph, config: CheckpointConfig) -> EndToEnd:
    """The weakest of all parts, and which parts are weaker than exactly-once."""
    parts = [_of_mode(config.mode)]
    parts += [_of_source(operator) for operator in graph.of_kind("source")]
    parts += [_of_sink(operator) for operator in graph.of_kind("sink")]
    level = min((level for level, _ in parts), key=_ORDER.index)
    return EndToEnd(level, tuple(why for part, why in parts if part != EXACTLY_ONCE))


def _of_mode(mode: Mode) -> tuple[str, str]:
    match mode:
        case Mode.EXACTLY_ONCE:
            return EXACTLY_ONCE, ""
        case Mode.AT_LEAST_ONCE:
            return AT_LEAST_ONCE, "the engine does not align barriers (mode at-least-once)"
        case Mode.AT_MOST_ONCE:
            return AT_MOST_ONCE, "the engine reads nothing again after a failure (mode at-most-once)"


def _of_source(operator: Operator) -> tuple[str, str]:
    if isinstance(operator.what, Resettable):
        weakness = getattr(operator.what, "weakness", "")
        return (AT_LEAST_ONCE, f"source {operator.uid} {weakness}") if weakness else (EXACTLY_ONCE, "")
    return AT_MOST_ONCE, f"source {operator.uid} cannot be read again, so a failure loses what was in progress"


def _of_sink(operator: Operator) -> tuple[str, str]:
    sink: Any = operator.what
    level = str(getattr(sink, "guarantee", EXACTLY_ONCE if is_two_phase(sink) else AT_LEAST_ONCE))
    if level == EXACTLY_ONCE:
        return level, ""
    if level == EFFECTIVELY_ONCE:
        return level, f"sink {operator.uid} is idempotent, not transactional: after a failure older values may show"
    return level, f"sink {operator.uid} shows rows as they are written, and again after a failure"
