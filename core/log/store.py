"""What a store must offer to hold a decision log: put-if-absent, and little else.

Implementers guarantee:

- `put_if_absent` is atomic and durable: of all concurrent puts on a key exactly one answers True, and when it does, a
  reader anywhere sees the whole value, also after a crash. A partial value is never seen.
- False means that a value was there. An exception means nothing: the put may have happened, or may land later.
- `get` and `list_keys` are linearizable with puts (a value whose put answered is seen), and durable: what they show
  does not go away in a crash.

Callers treat every exception of put_if_absent as "in doubt" and offer the same bytes again.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class LogStore(Protocol):
    """A flat folder of small values, for one pipeline. Keys have 20 characters: digits, or "R" and digits."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store `data` under `key` unless the key has a value; whether this call stored it.

        Raises:
            StoreError: In doubt.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none.

        Raises:
            StoreError: The store did not answer.
        """
        ...

    def list_keys(self) -> list[str]:
        """All keys, ascending.

        Raises:
            StoreError: The store did not answer.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a key; nothing happens if it is not there.

        Raises:
            StoreError: The store did not answer.
        """
        ...

    def describe(self) -> str:
        """Where this is, for messages; never with a password."""
        ...

    @property
    def shared(self) -> bool:
        """Whether processes on other machines see the same store."""
        ...
