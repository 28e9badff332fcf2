"""A decision log in the memory of this process, for trials and tests. It ends with the process."""

from __future__ import annotations

from threading import Lock


class MemoryStore:
    """LogStore in a dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See LogStore."""
        with self._lock:
            if key in self._values:
                return False
            self._values[key] = data
            return True

    def get(self, key: str) -> bytes | None:
        """See LogStore."""
        return self._values.get(key)

    def list_keys(self) -> list[str]:
        """See LogStore."""
        with self._lock:
            return sorted(self._values)

    def delete(self, key: str) -> None:
        """See LogStore."""
        with self._lock:
            self._values.pop(key, None)

    def describe(self) -> str:
        """See LogStore."""
        return "memory of this process"

    @property
    def shared(self) -> bool:
        """See LogStore."""
        return False
