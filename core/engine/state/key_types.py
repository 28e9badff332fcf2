"""The types of the keys that keyed state lies under: under a key of another type, no state is found.

A type here is one whose values give the same bytes as keys: all integers are `int`, and text is `str`, in whatever
Arrow type it lies. Null fits with every type.

Where a schema fixes the type of a key, it is compared before a run starts (engine.fits). Records without a schema may
have keys of several types, and each is a key of its own. There the first rows after a start are compared: a type that
the state does not know is refused until one has come that it knows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_log = logging.getLogger("onceward.engine")
_is = pa.types
_KINDS: Final[dict[str, Sequence[Callable[[pa.DataType], bool]]]] = {
    "": [_is.is_null],
    "int": [_is.is_integer],
    "str": [_is.is_string, _is.is_large_string, _is.is_string_view],
    "bytes": [_is.is_binary, _is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary],
    "date": [_is.is_date],
    "time": [_is.is_time],
}


def type_name(type_: pa.DataType) -> str:
    """Return the name of a key's type; empty for null."""
    if _is.is_dictionary(type_):
        return type_name(type_.value_type)
    if _is.is_timestamp(type_):
        return "timestamp" if type_.tz is None else f"timestamp with zone {type_.tz}"
    return next((name for name, kinds in _KINDS.items() if any(kind(type_) for kind in kinds)), str(type_))


def merge_types(of_subtasks: Iterable[Sequence[Sequence[str]]]) -> list[list[str]]:
    """Return the types, column by column, that any of these subtasks has stored; none if they have read no row."""
    columns: list[set[str]] = []
    for types in of_subtasks:
        columns += [set() for _ in range(len(types) - len(columns))]
        for known, more in zip(columns, types, strict=False):
            known |= {*more}
    return [sorted(known) for known in columns]


def types_by_name(columns: Sequence[str], types: Sequence[Sequence[str]]) -> str:
    """Return key columns with their types, for a message."""
    known = [*types, *([()] * (len(columns) - len(types)))]
    return ", ".join(
        f"{column} ({' or '.join(each)})" if each else column for column, each in zip(columns, known, strict=False)
    )


def changed_keys_error(uid: str, where: str, before: str, now: str) -> ConfigurationError:
    """Return the error for keyed state that would not be found under the keys that a stream has now."""
    return ConfigurationError(
        f"operator {uid} has in {where} state under the keys {before}, and its rows are keyed by {now} now: state "
        "would begin anew beside it. Key by the same columns with the same types again (schema= of the operator before "
        "fixes types); or give the operator another uid to begin without this state, and pass "
        "allow_non_restored_state=True. If these keys are meant, pass allow_non_restored_state=True once with the same "
        "uid: the state stays, and is found where the values of the keys are the same"
    )


class KeyTypes:
    """The types of keys that one subtask's state is under.

    Args:
        uid: Uid of the operator.
        columns: Names of the key's columns.
        restored: Types in the checkpoint, column by column; none at a fresh start.
        all_new: True if types that the checkpoint does not have are accepted from the first row on.
    """

    def __init__(
        self, uid: str, columns: Sequence[str], restored: Sequence[Sequence[str]] = (), *, all_new: bool = True
    ) -> None:
        self._uid, self._columns = uid, columns
        known = [*restored, *([()] * (len(columns) - len(restored)))]
        self._known = [dict.fromkeys(types) for types in known]
        self._unproven = [bool(types) and not all_new for types in self._known]
        """Whether no row has shown yet that the column has a type that the state knows."""
        self._seen: set[tuple[pa.DataType, ...]] = set()

    def learn(self, types: tuple[pa.DataType, ...]) -> None:
        """Take note of the types of a batch's keys.

        Raises:
            ConfigurationError: The state of the checkpoint is under keys of other types.
        """
        if types in self._seen:
            return
        names = [type_name(type_) for type_ in types]
        for number, name in enumerate(names):
            known = self._known[number]
            if name and name not in known:
                if self._unproven[number]:
                    before = types_by_name(self._columns, self.stored())
                    raise changed_keys_error(
                        self._uid, "the checkpoint", before, types_by_name(self._columns, [[each] for each in names])
                    )
                if known:
                    column, others = self._columns[number], " and ".join(known)
                    _log.warning(
                        "operator %s: key column %s has values of type %s beside %s: each type has keys of its own",
                        *(self._uid, column, name, others),
                    )
                known[name] = None
            self._unproven[number] = self._unproven[number] and not name
        self._seen.add(types)

    def stored(self) -> list[list[str]]:
        """Return the types for a checkpoint; none as long as there was no row."""
        return [[*types] for types in self._known] if any(self._known) else []
