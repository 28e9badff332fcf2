"""Entries of the decision log, and how they are written down.

An entry is one line of header (format, SHA-256) and one line of JSON. The header makes a damaged entry an error that
names itself instead of a decision nobody made. The same entry always gives the same bytes, because writers compare
whole bytes to learn whether a put whose answer was lost was theirs (log rule 1 of ARCHITECTURE.md).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..contract.names import Reached
from ..contract.proof import Proofs
from ..contract.transaction import Committable
from ..errors import LogDamagedError
from ..kit.sealed import seal, unseal_as

_FORMAT = "onceward-log"
_DIGITS = 20
_ADVICE = ". Restore the log from a copy; do not delete the entry, for it may be the decision of an epoch"


class EpochInput(msgspec.Struct, frozen=True, kw_only=True):
    """What an epoch was computed from; a replay is recognised only when all of it matches."""

    query: str = ""
    """Identity of the query (Spark's query id) or graph."""
    digest: str = ""
    """SHA-256 of the driver's own record of the input (Spark: the checkpoint's offsets file)."""
    start: Any = None
    """Offsets where the input began, as JSON values."""
    end: Any = None
    """Offsets where it ended, as JSON values."""

    def same_as(self, other: EpochInput) -> bool:
        """Return whether both inputs are the same, compared as JSON."""
        return _json(self) == _json(other)

    def follows(self, before: EpochInput) -> bool:
        """Return whether this input begins where `before` ended (invariant 5), as far as both say so."""
        return before.end is None or self.start is None or _json(self.start) == _json(before.end)


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a rewind: its reason, which is never permission for another one; and where it went."""

    query: str
    """Identity of the query that went back."""
    epoch: int
    """First epoch after it; -1 for whichever the driver offered first."""
    why: str
    earlier: tuple[str, ...] = ()
    """Reasons of the rewinds before it: an older command line finds them done, too."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry"):
    pipeline: str
    log: str
    """Identity of the log, made by its first START."""
    position: int
    writer_id: str = msgspec.field(name="writer")
    """Random identity of the process that wrote it."""
    start: int
    """Position of that writer's START."""
    at: str = ""
    """Wall-clock time for people; nothing depends on it."""


class Start(_Entry, frozen=True, kw_only=True, tag="START"):
    """A new writer: from here on every older writer's next put fails."""

    tool: str = ""
    """Command of an operator that wrote the entry, to end older writers; empty for a run, which goes on to decide
    epochs."""
    floor: int = 0
    """Position below which a repair has made entries void, because some of them are lost. 0 if nothing was repaired."""


class Decide(_Entry, frozen=True, kw_only=True, tag="DECIDE"):
    """The epoch will commit: every committable, the input, the state handles."""

    epoch: int
    sinks: tuple[str, ...] = ()
    committables: tuple[Committable, ...] = ()
    input: EpochInput = EpochInput()
    state: dict[str, Any] = {}
    """State handles of the embedded engine, by operator uid (JSON values)."""
    follows: int | None = None
    """Number of the epoch before, if numbers may have gaps, because checkpoints of the embedded engine were given up;
    None if they have none."""
    rewind: Rewound | None = None
    """The newest rewind before this decision: its own entry is pruned."""
    proofs: Proofs | None = None
    """Proofs of what the epochs before wrote: their own decisions are pruned. None if an older version wrote this."""
    reached: dict[str, Reached] = {}
    """The newest commit of each sink in the epochs before, since the newest rewind; not there for one that had none."""
    own_epochs: bool = False
    """True if `reached` has the transactions' own epochs. False if an older version wrote this: those of decisions."""
    subtasks: int = 0
    """Number of subtasks that acknowledged: what is lost is written again by as many. 0 if an older version wrote
    this."""
    datasets: dict[str, str] = {}
    """Name of each sink's dataset; empty for one that does not say. Empty if an older version wrote this."""
    targets: dict[str, Any] = {}
    """Address of each sink's target without secrets (`SystemAddress`), for the command that commits it by hand. Empty
    if an older version wrote this."""


class Completed(_Entry, frozen=True, kw_only=True, tag="COMPLETED"):
    """Every transaction of the epoch's decision has ended. Entries below `floor` are void and may be deleted."""

    epoch: int
    floor: int
    claimed: tuple[str, ...] | None = None
    """Sinks that own their names in their targets: an operator's command knows only those that had rows.

    None if an older version wrote this: all sinks of the decision.
    """


class Rewind(_Entry, frozen=True, kw_only=True, tag="REWIND"):
    """Somebody chose to go back: the next decision is for `rewind.epoch`."""

    rewind: Rewound


class Void(_Entry, frozen=True, kw_only=True, tag="VOID"):
    """The epoch's decision is void, proven by the target to have committed nothing; it may be decided again."""

    epoch: int
    proofs: tuple[str, ...]
    covered: bool = False
    """Return whether a rewind has taken the decision back: some of it may be committed, and is written again."""


class Replace(_Entry, frozen=True, kw_only=True, tag="REPLACE"):
    """Lost transactions of the decision that waits were written again: from here on it names the new ones instead."""

    epoch: int
    lost: tuple[tuple[str, str], ...]
    """Sink and transaction of each one that the decision no longer names."""
    committables: tuple[Committable, ...]
    """Committables that it names instead. Their rows are the same, by count and hash for each sink."""


class Resolved(_Entry, frozen=True, kw_only=True, tag="RESOLVED"):
    """Audit record: a person or a policy settled one decided transaction otherwise than by committing it."""

    epoch: int
    transaction: str
    action: str
    who: str
    why: str
    sink: str = ""
    """Name of a sink whose target has lost more than this log can name, and goes on with what it has; then
    `transaction` is empty."""


class Moved(_Entry, frozen=True, kw_only=True, tag="MOVED"):
    """The last entry of a log that has moved: a copy, which ends right before this entry, continues elsewhere.

    No writer can start in this log again.
    """

    to: str
    """Location of the copy, for people and for the next restore."""


Entry = Start | Decide | Completed | Rewind | Void | Replace | Resolved | Moved


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def encode(entry: Entry) -> bytes:
    """Write an entry down; equal entries give equal bytes. A LogDamagedError if it could not be read back."""
    data = seal(_FORMAT, _json(entry))
    decode_entry(data, entry.position)
    return data


def decode_entry(data: bytes, position: int) -> Entry:
    """Read an entry back.

    Raises:
        LogDamagedError: The bytes are not what was written at `position`.
        NewerFormatError: A newer version of the library wrote it.
    """
    what = f"entry {position} of the decision log"
    entry: Entry = unseal_as(_FORMAT, data, Entry, LogDamagedError, what, advice=_ADVICE)  # type: ignore[arg-type]  # a union
    if entry.position != position:
        raise LogDamagedError(f"{what} says that it is entry {entry.position}")
    return entry


def head_of(data: bytes) -> bytes:
    """Return the first line of an entry's bytes, whose checksum distinguishes the entry from all others."""
    return data.partition(b"\n")[0]


def key_of(position: int) -> str:
    """Return the store's key of a position; keys sort as positions do."""
    return f"{position:0{_DIGITS}d}"


def position_of(key: str) -> int | None:
    """Return the position of a key; None for a key that is not an entry's."""
    return int(key) if len(key) == _DIGITS and key.isascii() and key.isdigit() else None


def record_key(position: int) -> str:
    """Return the key of an entry's audit record: as long as an entry's key, and no number."""
    return f"R{key_of(position)[1:]}"


def position_of_record(key: str) -> int | None:
    """Return the position of the entry that an audit record is a copy of; None for a key that is not a record's."""
    return position_of(f"0{key[1:]}") if key.startswith("R") else None
