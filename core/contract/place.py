"""Places: what rows are written to or read from, as far as it can be read back.

`onceward verify` compares what a place holds with what a decision log says, or with what another place holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from ..errors import ConfigurationError
from .proof import NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .names import Scope
    from .proof import ProvenEpoch, Reread


class Place(ABC):
    """Something in a system that rows are written to or read from: a topic, a table, a folder.

    Args:
        title: Title of the place for people, such as `kafka:orders`.

    Attributes:
        takes_copies: True if rows that come from a topic arrive as its messages are, key and value, and not as the
            columns of the JSON objects in them.
        holds_bytes: True if all its columns are bytes, so that a text of JSON is not taken for bytes in Base64.
        holds_upserts: True if rows without a hash may be upserts, which the newest row of each key proves.
    """

    takes_copies: ClassVar[bool] = False
    holds_bytes: ClassVar[bool] = False
    holds_upserts: ClassVar[bool] = False

    def __init__(self, title: str) -> None:
        self.title = title

    @abstractmethod
    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read the rows that it holds, with the mark of the transaction that wrote each one.

        Args:
            scope: Names of the pipeline, sink and log whose ledger or file names tell the epochs; None: nobody asks for
                them.
            columns: Columns to read; empty: all that can be compared.

        Raises:
            SinkError: The system does not answer, or refuses.
            SchemaError: A column is missing.
        """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows as they are."""
        yield from (piece.rows for piece in self.reread(None, ()).pieces)

    def of_epoch(self, epoch: ProvenEpoch) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Read again the rows that an epoch of a pipeline read from here.

        Raises:
            ConfigurationError: The decision log does not say where the epoch's input begins and ends here.
            SourceError: The system does not answer, or no longer holds these rows.
        """
        raise ConfigurationError(f"{self.title}: a decision log says only for a topic what each epoch read")

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows as a sink hashes them when it writes them here, if the rows here have this schema."""
        return fit_columns(batch, schema)


def fit_columns(
    batch: pa.RecordBatch, schema: pa.Schema, casts: Mapping[str, Callable[[pa.Array], pa.Array]] | None = None
) -> pa.RecordBatch:
    """Return the columns of a batch that the schema names, converted to the schema's types.

    Args:
        batch: The rows to convert.
        schema: The columns to keep, with their types.
        casts: Functions that convert a column first, by the mark that its field has in its metadata.

    Raises:
        pyarrow.ArrowException: A value cannot be converted.
    """
    names = [name for name in schema.names if name in batch.schema.names]
    columns = [_cast(batch.column(name), schema.field(name), casts or {}) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([schema.field(name) for name in names]))


def _cast(array: pa.Array, field: pa.Field, casts: Mapping[str, Callable[[pa.Array], pa.Array]]) -> pa.Array:
    for mark, cast in casts.items():
        if has_mark(field, mark):
            array = cast(array)
    if not has_mark(field, NUMBER):
        if pa.types.is_decimal(array.type) and pa.types.is_floating(field.type):  # Arrow's cast may be one digit off
            return pa.array([None if value is None else float(value) for value in array.to_pylist()], field.type)
        return array.cast(field.type)
    numbers = [None if text is None else f"{Decimal(text):f}" for text in array.cast(pa.string()).to_pylist()]
    short = [number if number is None or "." not in number else number.rstrip("0").rstrip(".") for number in numbers]
    return pa.array(short, pa.string())


def has_mark(field: pa.Field, mark: str) -> bool:
    """Return whether a field's metadata has one of the marks of onceward.core.contract.proof."""
    return mark.encode() in (field.metadata or {})
