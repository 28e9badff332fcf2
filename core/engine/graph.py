"""The logical graph of a pipeline: operators, the edges between them, and what it guarantees.

What a reader of the targets sees of each record: the weakest of source, engine and sink.

    source kind, sink kind     direct          idempotent         write-ahead log    two-phase
    live (not resettable)      at-most-once    at-most-once       at-most-once       at-most-once
    resettable                 at-least-once   effectively-once   as the sink says   exactly-once

in the engine's exactly-once mode. In at-least-once mode nothing is better than at-least-once; in at-most-once mode
nothing is better than at-most-once. With no checkpoints the input's end is the only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..contract.sink import Guarantee
from ..contract.source import ResettableSource
from ..errors import ConfigurationError
from .channels import TaskId
from .state.keys import KeyEncoder, check_parallelism

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from ..contract.source import Source
    from .config import CheckpointConfig


@dataclass
class Operator:
    """One operator: source, map, filter, flat_map, map_batches, process, union or sink."""

    uid: str
    """Stable name of its state."""
    kind: str
    what: Any
    """The source, function or sink."""
    parallelism: int
    inputs: list[tuple[Operator, KeyEncoder | None]]
    """Operators that it reads, each with the encoder of its rows' keys; None if the rows are not keyed."""
    schema: pa.Schema | None = None
    """Schema of its output; None if the user did not fix it."""

    @property
    def keys(self) -> KeyEncoder | None:
        return self.inputs[0][1] if self.inputs else None

    def tasks(self) -> list[TaskId]:
        return [TaskId(self.uid, subtask) for subtask in range(self.parallelism)]


class Graph:
    """All operators, in an order in which inputs come first."""

    def __init__(self, max_parallelism: int, parallelism: int = 1) -> None:
        check_parallelism("the pipeline", 1, max_parallelism)
        self.max_parallelism = max_parallelism
        self._parallelism = parallelism
        self.operators: list[Operator] = []

    def add(
        self,
        kind: str,
        what: Any,
        inputs: list[tuple[Operator, KeyEncoder | None]],
        *,
        uid: str | None = None,
        parallelism: int | None = None,
        schema: pa.Schema | None = None,
    ) -> Operator:
        parallelism = self._parallelism if parallelism is None else parallelism
        uid = uid or f"{kind}-{len(self.operators)}"
        if any(operator.uid == uid for operator in self.operators):
            what = "sinks or operators" if kind == "sink" else "operators"
            raise ConfigurationError(f"two {what} have the uid {uid!r} (a sink's is its name): give each its own")
        if "/" in uid or uid.startswith("."):
            raise ConfigurationError(f"uid {uid!r} cannot be used: it names files. Leave out '/' and a leading '.'")
        check_parallelism(f"operator {uid}", parallelism, self.max_parallelism)
        operator = Operator(uid, kind, what, parallelism, inputs, schema)
        self.operators.append(operator)
        return operator

    def of_kind(self, kind: str) -> list[Operator]:
        return [operator for operator in self.operators if operator.kind == kind]

    def check(self) -> None:
        """Refuse a graph without a source, with an end that is no sink, or with two sinks of one name."""
        if not self.of_kind("source"):
            raise ConfigurationError("the pipeline has no source")
        read = [source.uid for reader in self.operators for source, _ in reader.inputs]
        loose = [o.uid for o in self.operators if o.kind != "sink" and o.uid not in read]
        if loose:
            raise ConfigurationError(f"the output of {', '.join(loose)} is not used: end each stream with sink(…)")
        names = [o.what.name for o in self.of_kind("sink")]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"two sinks have the same name: {', '.join(sorted(names))}. Give each its own")


class WeakPart(NamedTuple):
    """A part of a pipeline that weakens its guarantee.

    Attributes:
        name: Name of the part, for people.
        level: Guarantee that is left with this part.
        why: Reason why it weakens the guarantee, as the rest of a sentence that begins with its name.
    """

    name: str
    level: Guarantee
    why: str


class EndToEnd(NamedTuple):
    """A pipeline's guarantee.

    Attributes:
        level: Guarantee of the weakest part.
        why: Reasons why it is weaker than exactly-once, one for each weak part; empty for exactly-once.
    """

    level: Guarantee
    why: tuple[str, ...]


def weakest(levels: Iterable[Guarantee]) -> Guarantee:
    """Return the weakest guarantee; exactly-once if there is no part."""
    return max(levels, key=list(Guarantee).index, default=Guarantee.EXACTLY_ONCE)


OF_MODE: Final = {
    "at-least-once": WeakPart("the engine", Guarantee.AT_LEAST_ONCE, "does not align barriers (mode at-least-once)"),
    "at-most-once": WeakPart(
        "the engine", Guarantee.AT_MOST_ONCE, "reads nothing again after a failure (mode at-most-once)"
    ),
}
"""The engine, in the modes in which it weakens the guarantee."""
_OF_SINK: Final = {
    Guarantee.EFFECTIVELY_ONCE: "is idempotent, not transactional: after a failure older values may be visible",
    Guarantee.AT_LEAST_ONCE: "makes rows visible as they are written, and again after a failure",
    Guarantee.AT_MOST_ONCE: "may lose rows that its target acknowledged",
}


def end_to_end(graph: Graph, config: CheckpointConfig) -> EndToEnd:
    """Return the weakest guarantee of all parts, and the parts that are weaker than exactly-once."""
    parts = [OF_MODE.get(config.mode)]
    parts += [of_source(operator.uid, operator.what) for operator in graph.of_kind("source")]
    parts += [of_sink(operator.uid, operator.what.guarantee) for operator in graph.of_kind("sink")]
    weak = [part for part in parts if part is not None]
    return EndToEnd(weakest(part.level for part in weak), tuple(f"{part.name} {part.why}" for part in weak))


def of_source(name: str, source: Source) -> WeakPart | None:
    """Return a source as a weak part; None if it is read again identically."""
    name = f"source {name}"
    if not isinstance(source, ResettableSource):
        return WeakPart(name, Guarantee.AT_MOST_ONCE, "cannot be read again, so a failure loses what was in progress")
    return WeakPart(name, Guarantee.AT_LEAST_ONCE, source.weakness) if source.weakness else None


def of_sink(name: str, level: Guarantee) -> WeakPart | None:
    """Return a sink as a weak part; None if it is exactly-once."""
    return WeakPart(f"sink {name}", level, _OF_SINK[level]) if level is not Guarantee.EXACTLY_ONCE else None
