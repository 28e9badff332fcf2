"""What users say of their pipeline, and what follows of it for the outputs.

What must be in them is what a user's function says, or what a run without faults has left. The second is for pipelines
whose output nobody can write down as a function of the input. It holds as far as the pipeline gives the same output for
the same input; the case `clean` shows whether it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

from onceward.core.errors import ConfigurationError
from onceward.core.operations.comparison import text_of_row

from .endpoints import Endpoint
from .timed_faults import FAULTS, Inject

if TYPE_CHECKING:
    from onceward.core.operations.comparison import Record, Row

    from .driver import Command

Expected: TypeAlias = "Sequence[Row] | Mapping[str, Sequence[Row]]"
Expectation: TypeAlias = "Callable[[Sequence[Record], Sequence[Endpoint]], list[Sequence[Row]]]"
"""Makes the rows of each output of what the inputs hold."""


class PipelineSpec:
    """The start of a pipeline's driver program, the program's input and the output that must come out.

    The driver is restarted whenever it ends. It gets KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and PIPELINE_FOLDER (for
    checkpoints) in environment variables, and runs in the folder of the test's file.

    Attributes:
        command: The program and its arguments, or a function at the top level of a file.
        inputs: Input, or several; the n-th row goes to input n modulo their number.
        outputs: Output, or several.
        services: "containers", "local" for processes on this machine, or "auto": containers if Docker answers.
        key: Column that identifies a row in inputs and outputs, so that offending rows are traced to their source.
        row_count: Number of rows that are fed.
        feed_seconds: Seconds for which rows are fed, after the first output was seen.
        timeout: Seconds for the first output, and for all output after the fault.
        quiet: Seconds for which the outputs must not change at the end.
        stop_seconds: Seconds that the driver has to end after SIGTERM.
        reference_run: Do not ask `expected`; compare with the outputs of a run without faults, made once for the class.
        max_blocked_seconds: Seconds for which readers may be blocked in one place after the fault, by a transaction
            that stays open or prepared; None: until the outputs must be complete.
        uses_onceward: Also crash the driver at onceward's durable steps (ONCEWARD_CRASH_AT).
        environment: Further variables for the driver.
        faults: The faults to choose from, by name.
    """

    command: Command
    inputs: Endpoint | Sequence[Endpoint]
    outputs: Endpoint | Sequence[Endpoint]
    services: Literal["auto", "containers", "local"] = "auto"
    key: str | None = "id"
    row_count: int = 300
    feed_seconds: float = 3.0
    timeout: float = 120.0
    quiet: float = 1.0
    stop_seconds: float = 5.0
    reference_run: bool = False
    max_blocked_seconds: float | None = None
    uses_onceward: bool = False
    environment: ClassVar[Mapping[str, str]] = {}
    faults: ClassVar[Mapping[str, Inject]] = FAULTS

    def row(self, number: int) -> Row:
        """Return the row with this number, counted from 0."""
        return {"id": number, "value": f"v{number}"}

    def expected(self, rows: list[Row]) -> Expected:
        """Return the expected output for these rows: the rows of every output, or rows by the outputs' names.

        Args:
            rows: Rows that the inputs hold, by input, partition and offset.
        """
        return rows

    def endpoints(self, name: Literal["inputs", "outputs"]) -> list[Endpoint]:
        """Return the inputs or outputs as a list.

        Raises:
            ConfigurationError: There are none.
        """
        given = getattr(self, name, [])
        found = [given] if isinstance(given, Endpoint) else list(given)
        if not found:
            raise ConfigurationError(
                f"{type(self).__name__} has no {name}: set {name} = KafkaTopic(…), Table(…) or another"
            )
        return found


class ReferenceRun(NamedTuple):
    """The inputs and outputs of a run without faults.

    Attributes:
        inputs: Number of times that each row is in the inputs, by the row's text.
        outputs: The rows of each output, which are expected again.
    """

    inputs: Counter[str]
    outputs: list[Sequence[Row]]


def count_rows(records: Sequence[Record]) -> Counter[str]:
    """Count how often each row is there."""
    return Counter(text_of_row(record.row) for record in records)


def from_function(expected: Callable[[list[Row]], Expected]) -> Expectation:
    """Expect the rows that a user's function returns for those of the inputs."""

    def rows_of(inputs: Sequence[Record], outputs: Sequence[Endpoint]) -> list[Sequence[Row]]:
        found = expected([record.row for record in inputs])
        if not isinstance(found, Mapping):
            return [found] * len(outputs)
        for output in outputs:
            if output.name not in found:
                raise ConfigurationError(f"expected() says nothing of {output.title}: add {output.name!r}")
        return [found[output.name] for output in outputs]

    return rows_of
