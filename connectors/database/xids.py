"""A transaction's name as an XA identifier, which has less room: 64 bytes for each of its two parts.

The first part (gtrid) holds a digest of the pipeline's and the sink's name, the second (bqual) the rest of the name
as it is. Who looks for a pipeline's transactions compares the whole first part with that of exactly these names
(invariant 9), and then has core/names read the whole name, put together again.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.names import FORMAT

from .target import own_name

if TYPE_CHECKING:
    from onceward.core.names import TransactionName

FORMAT_ID: Final = 0x0CEBA2D
PART_BYTES: Final = 64
_DIGEST: Final = 48
"""Hex digits: 192 bits, which no two names ever share."""
_SHOWN: Final = re.compile(r"X'((?:[0-9a-fA-F]{2})*)',X'((?:[0-9a-fA-F]{2})*)',(\d+)")


class Xid(NamedTuple):
    """An XA identifier of ours: both parts are printable ASCII without quotes."""

    gtrid: str
    bqual: str

    @classmethod
    def of(cls, name: TransactionName) -> Xid:
        """The identifier of a name.

        Raises:
            ValueError: Its numbers have more than about forty digits together.
        """
        head = f"{FORMAT}:{name.scope.pipeline}:{name.scope.sink}:"
        bqual = str(name).removeprefix(head)
        if len(bqual) > PART_BYTES:
            raise ValueError(f"{name} needs {len(bqual)} bytes as an XA branch qualifier, which has {PART_BYTES}")
        return cls(gtrid_of(name.scope.pipeline, name.scope.sink), bqual)

    def __str__(self) -> str:
        """For XA commands."""
        return f"'{self.gtrid}','{self.bqual}',{FORMAT_ID}"


def gtrid_of(pipeline: str, sink: str) -> str:
    """The first part of all identifiers of a pipeline's sink."""
    return f"{FORMAT}:{hashlib.sha256(f'{pipeline}:{sink}'.encode()).hexdigest()[:_DIGEST]}"


def read_xid(shown: str, pipeline: str, sink: str) -> TransactionName | None:
    """The name behind an identifier as `XA RECOVER FORMAT='SQL'` shows it, if it carries exactly these names."""
    match = _SHOWN.fullmatch(shown)
    if match is None or int(match[3]) != FORMAT_ID:
        return None
    gtrid, bqual = bytes.fromhex(match[1]), bytes.fromhex(match[2])
    if gtrid != gtrid_of(pipeline, sink).encode() or not bqual.isascii():
        return None
    return own_name(f"{FORMAT}:{pipeline}:{sink}:{bqual.decode()}", pipeline, sink)
