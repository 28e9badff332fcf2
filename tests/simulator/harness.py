"""The code under test runs on the world's randomness, threads and clocks, and is listened to."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from onceward.core.checkpoint import coordinator
from onceward.core.log import reader
from onceward.core.steps import hooked
from onceward.core.transaction import context

from .audit import read_entry
from .kafka_sink import kafka_in
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from onceward.core.checkpoint import Participant, Swept
    from onceward.core.log import Entry, LogView, LogWriter

    from .audit import Audit
    from .broker import Broker
    from .world import World


@contextmanager
def inside(world: World, audit: Audit, broker: Broker) -> Iterator[None]:
    """Everything that the code under test takes from the real world comes from the simulated one."""
    logger = logging.getLogger("onceward")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            patch.object(context, "secrets", SimpleNamespace(token_hex=lambda _: world.token()[:8])),
            patch.object(coordinator, "sweep", _audited(audit, coordinator.sweep)),
            patch.object(reader, "decode", read_entry),
            patch.object(reader, "fold", _memo(reader.fold)),
            kafka_in(world, broker),
            hooked(world.hook),
        ):
            yield
    finally:
        logger.setLevel(level)


def _audited(audit: Audit, sweep: Callable[..., Swept]) -> Callable[..., Swept]:
    """A sweep that nobody disturbs leaves nothing behind."""

    def audited(writer: LogWriter, sinks: Iterable[Participant], **how: bool) -> Swept:
        log, disturbed = audit.logs[writer.token.log], audit.world.disturbed
        lingering = audit.lingering(log)
        swept = sweep(writer, sinks, **how)
        newest = (log.start, log.writer) == (writer.token.start, writer.token.writer)
        if swept.left:
            return swept  # it said so, and is tried again
        left = [txn for txn in lingering if txn.state == "prepared" and not txn.ending]
        if newest and left and disturbed == audit.world.disturbed:
            raise Violation("sweep", f"lingers after an undisturbed sweep: {left}")
        return swept

    return audited


def _memo(fold: Callable[..., LogView]) -> Callable[..., LogView]:
    """Logs are read much more often than they change. Entries are the same objects as long as they are kept here."""
    known: dict[tuple[int, ...], LogView] = {}

    def remembered(entries: list[Entry], floor: int = 0) -> LogView:
        key = (floor, *map(id, entries))
        if key not in known:
            known[key] = fold(entries, floor)
        return known[key]

    return remembered
