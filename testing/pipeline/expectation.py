"""What must be in the outputs: what a user's function says, or what a run without faults has left in them.

The second is for pipelines whose output nobody can write down as a function of the input. It holds as far as the
pipeline gives the same output for the same input; the case `clean` shows whether it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from onceward.core.errors import ConfigurationError

from .judge import text_of

if TYPE_CHECKING:
    from .endpoints import Endpoint, Record, Row

Expected: TypeAlias = "Sequence[Row] | Mapping[str, Sequence[Row]]"
Expectation: TypeAlias = "Callable[[Sequence[Record], Sequence[Endpoint]], list[Sequence[Row]]]"
"""Makes the rows of each output of what the inputs hold."""


class ReferenceRun(NamedTuple):
    """What a run without faults has left.

    Attributes:
        inputs: How often each row is in the inputs.
        outputs: The rows of each output.
    """

    inputs: Counter[str]
    outputs: list[Sequence[Row]]

    def expectation(self, inputs: Sequence[Record], outputs: Sequence[Endpoint]) -> list[Sequence[Row]]:  # noqa: ARG002
        """Expect the same again."""
        return self.outputs


def counted(records: Sequence[Record]) -> Counter[str]:
    """How often each row is there."""
    return Counter(text_of(record.row) for record in records)


def from_function(expected: Callable[[list[Row]], Expected]) -> Expectation:
    """Expect what a user's function says of the inputs' rows."""

    def rows_of(inputs: Sequence[Record], outputs: Sequence[Endpoint]) -> list[Sequence[Row]]:
        found = expected([record.row for record in inputs])
        if not isinstance(found, Mapping):
            return [found] * len(outputs)
        for output in outputs:
            if output.name not in found:
                raise ConfigurationError(f"expected() says nothing of {output.title}: add {output.name!r}")
        return [found[output.name] for output in outputs]

    return rows_of
