"""What a sink says of the rows that it wrote: how many, and a hash of them in which their order makes no difference.

The hash of a set of rows is the sum of a hash of each row (`row_hash.py`). So rows that are written by several subtasks
in any order, and read back in any other, give the same sum; the sums of transactions add up to that of their epoch, and
those of epochs to that of the table. Clarke, Devadas, van Dijk, Gassend and Suh call it MSet-Add-Hash ("Incremental
Multiset Hash Functions and Their Application to Memory Integrity Checking", ASIACRYPT 2003), Bellare and Micciancio
AdHash ("A New Paradigm for Collision-Free Hashing: Incrementality at Reduced Cost", EUROCRYPT 1997).

Its key is known to everybody, and 128 bits fall to a generalized birthday attack. So it finds faults, not forgeries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_ROWS: Final = "0" * 32
_DIGITS: Final = 16
_LANE: Final = 2**64


def total(hashes: Iterable[str]) -> str:
    """The hash of several sets of rows together."""
    every = list(hashes)
    lanes = [sum(int(one[at : at + _DIGITS], 16) for one in every) for at in (0, _DIGITS)]
    return "".join(f"{lane % _LANE:016x}" for lane in lanes)


def without(one: str, other: str) -> str:
    """The hash of a set of rows less another set that is part of it."""
    lanes = (int(one[at : at + _DIGITS], 16) - int(other[at : at + _DIGITS], 16) for at in (0, _DIGITS))
    return "".join(f"{lane % _LANE:016x}" for lane in lanes)


class Proof(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one transaction wrote; how many rows, its committable says."""

    hash: str
    """Sum of the rows' hashes: two numbers of 64 bits, in hex."""
    columns: tuple[str, ...] = ()
    """What of a row was hashed, by name."""
    mark: str = ""
    """How each row of the target shows which transaction wrote it, where that is not by the transaction's name."""
