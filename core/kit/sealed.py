"""Text that says what it is: a line with its format and its SHA-256, and a line of JSON.

The checksum makes damage an error that names itself. The number of the format tells what is damaged from what a newer
version of the library wrote.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeVar

import msgspec

from ..errors import NewerFormatError, OncewardError, text_of
from . import typed

T = TypeVar("T")
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for bytes that it cannot read."""
_HEADER: Final = re.compile(rb"([a-z-]+)/(\d+)(?: ([0-9a-f]{64}))?")


def seal(name: str, body: bytes) -> bytes:
    """Put the header before the body. The format's number is 1."""
    return f"{name}/1 {hashlib.sha256(body).hexdigest()}\n".encode() + body + b"\n"


def unseal(name: str, data: bytes, what: str) -> bytes | None:
    """Return the body; None if the checksum does not match.

    In a later format, the checksum is that of the header's first word, a line feed and the body: otherwise a single
    damaged byte could make one format look like another.

    Raises:
        NewerFormatError: It has a format of a newer version of the library.
    """
    header, _, rest = data.partition(b"\n")
    body, match = rest.removesuffix(b"\n"), _HEADER.fullmatch(header)
    if match is not None and match[3] == hashlib.sha256(header.split()[0] + b"\n" + body).hexdigest().encode():
        check_format_version(name, header, what)
    return body if data == seal(name, body) else None


def unseal_as(name: str, data: bytes, kind: type[T], error: type[OncewardError], what: str, *, advice: str = "") -> T:
    """Unseal the data and decode its body to this type.

    Raises:
        OncewardError: Of the type `error`: this is not what was sealed; `what` is the subject of the message.
        NewerFormatError: It has a format of a newer version of the library.
    """
    body = unseal(name, data, what)
    if body is None:
        raise error(f"{what} is damaged: its checksum does not match its {len(data)} bytes{advice}")
    return decode_json(body, kind, error, what)


def decode_json(data: str | bytes, kind: type[T], error: type[OncewardError], what: str) -> T:
    """Decode JSON to this type; raise an `error` with the subject `what` if it has another form."""
    try:
        return typed.decode(data, kind)
    except UNREADABLE as unreadable:
        raise error(f"{what} cannot be read: {text_of(unreadable)}") from unreadable


def check_format_version(name: str, header: bytes, what: str, *, newest: int = 1) -> None:
    """Raise NewerFormatError, about `what`, for a format that is newer than the newest known one."""
    match = _HEADER.fullmatch(header)
    if match is not None and match[1].decode() == name and int(match[2]) > newest:
        raise NewerFormatError(
            f"{what} has format {int(match[2])}, and this version of onceward reads format {newest}: upgrade onceward "
            "to at least the version that wrote it"
        )
