"""What a page has not been sent yet: parts of what it shows, each with the version at which it changed last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that a page does not have in their newest form."""

    version: int
    """Version of the page, which it passes the next time."""
    parts: dict[str, msgspec.Raw]


class Changes:
    """Named parts in their newest form; a part that is no longer there is named by none of the others."""

    def __init__(self) -> None:
        self._version = 0
        self._parts: dict[str, tuple[int, bytes]] = {}

    def put(self, parts: Mapping[str, Any]) -> None:
        """Replace all parts."""
        newest: dict[str, tuple[int, bytes]] = {}
        for name, part in parts.items():
            known, encoded = self._parts.get(name), msgspec.json.encode(part)
            newest[name] = known if known is not None and known[1] == encoded else (self._version + 1, encoded)
        if newest != self._parts:
            self._parts, self._version = newest, self._version + 1

    def since(self, version: int) -> Update | None:
        """Return what changed after a version; all if that version is not known, None if nothing did."""
        if version == self._version:
            return None
        after = version if 0 < version < self._version else 0
        parts = {name: msgspec.Raw(part) for name, (changed, part) in self._parts.items() if changed > after}
        return Update(version=self._version, parts=parts)
