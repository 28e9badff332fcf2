"""For how long a transaction keeps readers waiting: one that stays open before a topic's end, or stays prepared."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from .endpoints import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .endpoints import Addresses, Endpoint

_LOOK_SECONDS: Final = 0.1


class BlockedReaders:
    """Watches the outputs while the block runs.

    What blocks readers is told apart by its words, which name the transaction or the offset: as long as an output says
    the same, it has not moved on.

    Args:
        outputs: What is read.
        addresses: Of the case.

    Attributes:
        longest: Seconds for which readers were blocked at one place.
        where: That place, in words.
    """

    def __init__(self, outputs: Sequence[Endpoint], addresses: Addresses) -> None:
        self.longest, self.where = 0.0, ""
        self._outputs, self._addresses = outputs, addresses
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="blocked readers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        since: dict[str, float] = {}
        while not self._stopped.wait(_LOOK_SECONDS):
            with suppress(UnreadableError):
                found = [what for output in self._outputs for what in output.left_open(self._addresses)]
                now = time.monotonic()
                since = {what: since.get(what, now) for what in found}
                for what, began in since.items():
                    if now - began > self.longest:
                        self.longest, self.where = now - began, what
