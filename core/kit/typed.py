"""What msgspec reads, by a type: safe where several threads are the first that use a class.

msgspec 0.22 keeps what it knows of a class with the class before it has read all of its annotations. A second thread
that decodes the same class at that moment reads a null pointer, which ends the process (SIGSEGV). So each type is made
known under one lock, before it is used.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from .processwide import PerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_decoders: Final[PerProcess[Any, msgspec.json.Decoder[Any]]] = PerProcess(msgspec.json.Decoder)


def decode(data: str | bytes, kind: type[T]) -> T:
    """Decode JSON to this type, as `msgspec.json.decode` does, with its errors."""
    value: T = _decoders.get(kind).decode(data)
    return value


def convert(
    value: Any, kind: type[T], *, strict: bool = True, from_attributes: bool = False, str_keys: bool = False
) -> T:
    """Convert a value to this type, as `msgspec.convert` does, with its options and errors."""
    _decoders.get(kind)
    return msgspec.convert(  # noqa: TID251 - the type is known now
        value, kind, strict=strict, from_attributes=from_attributes, str_keys=str_keys
    )


def convert_valid(fields: Mapping[str, Any], kind: type[S]) -> S:
    """Convert what others may have written to a struct: a field whose value is not of its type gets its default.

    Raises:
        msgspec.ValidationError: A field without a default is missing, or its value is not of its type.
    """
    with suppress(msgspec.ValidationError):
        return convert(fields, kind)
    valid: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in fields:
            with suppress(msgspec.ValidationError):
                valid[field.encode_name] = convert(fields[field.encode_name], field.type)
    return convert(valid, kind)
