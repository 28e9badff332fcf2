"""Binary images of values that pgpq has no encoder for: uuid from text, and arrays of any element type.

The formats are those of the server's receive functions (uuid_recv, array_recv; documented by the source only).
"""

from __future__ import annotations

import binascii
import struct
from typing import TYPE_CHECKING, Any, Final

import pgpq
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

_HEX_DIGITS: Final = 32
_TRAILER: Final = b"\xff\xff"
_INT: Final = struct.Struct(">i")
_ARRAY_EMPTY: Final = struct.Struct(">iiI")
_ARRAY_ONE_DIMENSION: Final = struct.Struct(">iiIii")


def encode_nulls(array: pa.Array) -> pa.Array:
    """Nulls of no type."""
    return pa.nulls(len(array), pa.binary())


def encode_uuid_storage(array: pa.Array) -> pa.Array:
    """The sixteen bytes of Arrow's own uuid type."""
    return array.storage


def encode_uuids(array: pa.Array) -> pa.Array:
    """Sixteen bytes each, from text such as `12345678-1234-5678-1234-567812345678` (hyphens and braces optional).

    Raises:
        ValueError: One is not a UUID; the message shows it.
    """
    texts = array.cast(pa.large_string())
    digits = pc.replace_substring_regex(texts, pattern="[-{}]", replacement="")
    bad = pc.filter(texts, pc.invert(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")))
    if len(bad):
        raise ValueError(f"{bad[0].as_py()!r} is not a UUID")
    filled = pc.fill_null(digits, "0" * _HEX_DIGITS)
    data = binascii.unhexlify("".join(filled.to_pylist()))
    images = pa.Array.from_buffers(pa.binary(16), len(array), [None, pa.py_buffer(data)])
    return pc.if_else(array.is_valid(), images, pa.scalar(None, pa.binary(16)))


def encode_arrays(
    convert: Callable[[pa.Array], pa.Array], builder: Callable[[pa.Field], Any], oid: int, array: pa.Array
) -> pa.Array:
    """One-dimensional arrays, each element in the image that pgpq makes of it, marked with the element type's oid."""
    elements = _encode_elements(convert(array.flatten()), builder)
    images: list[bytes | None] = []
    position = 0
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            images.append(None)
            continue
        images.append(_array(elements[position : position + length], oid))
        position += length
    return pa.array(images, pa.large_binary())


def _array(elements: list[bytes], oid: int) -> bytes:
    if not elements:
        return _ARRAY_EMPTY.pack(0, 0, oid)
    has_null = any(len(element) == _INT.size and element == b"\xff\xff\xff\xff" for element in elements)
    return _ARRAY_ONE_DIMENSION.pack(1, int(has_null), oid, len(elements), 1) + b"".join(elements)


def _encode_elements(values: pa.Array, builder: Callable[[pa.Field], Any]) -> list[bytes]:
    """Each value as its length (-1 for null) and bytes: in COPY's rows and in arrays these look the same."""
    schema = pa.schema([pa.field("element", values.type)])
    encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, {"element": builder(schema.field(0))})
    encoder.write_header()
    batch = pa.RecordBatch.from_arrays([values], schema=schema)
    rows = encoder.write_batch(batch) + encoder.finish()
    images: list[bytes] = []
    start = 0
    while start < len(rows) - len(_TRAILER):
        first = start + 2  # after the row's count of columns
        (length,) = _INT.unpack_from(rows, first)
        start = first + _INT.size + max(length, 0)
        images.append(rows[first:start])
    return images
