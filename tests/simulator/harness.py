"""The code under test runs on the world's randomness, threads and clocks, and is listened to."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark import TaskContext

from onceward.connectors.spark.formats import writers
from onceward.connectors.spark.session import options, query
from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.checkpoint import CommitPolicy, Coordinator, OnLost, coordinator
from onceward.core.contract import transaction
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import reader
from onceward.core.run import pipeline_log, pipeline_run
from onceward.core.run.keeper import Keeper

from .audit import kind_of, read_entry, target_of
from .kafka_sink import kafka_in
from .pipeline import policy_of
from .spark import read_file
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from onceward.core.checkpoint import Swept
    from onceward.core.contract.sink import TwoPhaseCommitSink
    from onceward.core.log import Entry, EpochInput, LogView, LogWriter

    from .audit import Audit
    from .broker import Broker
    from .run import Parts
    from .world import World


@contextmanager
def inside(world: World, audit: Audit, broker: Broker, parts: Parts) -> Iterator[None]:
    """Everything that the code under test takes from the real world comes from the simulated one."""

    def hook(step: Step) -> None:
        driver = world.current.process.driver if world.current is not None else None
        if step is Step.ACKNOWLEDGED and driver is not None:
            driver.acknowledged = world.tick
        world.hook(step)

    logger = logging.getLogger("onceward")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            patch.object(transaction, "secrets", SimpleNamespace(token_hex=lambda _: world.token()[:8])),
            patch.object(coordinator, "sweep", _audited(audit, coordinator.sweep)),
            patch.object(reader, "decode_entry", read_entry),
            patch.object(reader, "fold", _memo(reader.fold)),
            kafka_in(world, broker),
            _spark_in(world, parts),
            hooked(hook),
        ):
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _spark_in(world: World, parts: Parts) -> Iterator[None]:
    """Folders, task contexts and policies of the adapter are the world's; a driver's coordinators are known."""

    def made(*args: Any, **settings: Any) -> Coordinator:
        new = parts.coordinator(*args, **settings)
        assert world.current is not None
        world.current.process.driver.coordinators.append(new)
        return new

    def policy_of_user(on_lost: str, *_: float) -> CommitPolicy:
        return policy_of(world)(on_lost=OnLost(on_lost))

    def read_text(url: str) -> str | None:
        return read_file(world, url)

    def every_third(_writers: object, about: EpochInput, *_: object, **__: object) -> int | None:
        assert world.current is not None
        return 1 if (int(about.digest, 16) + world.current.process.driver.number) % 3 == 0 else None

    batches = sys.modules[EpochHandler.__module__]  # the package has a function of its name
    with ExitStack() as stack:
        stack.enter_context(patch.object(pipeline_run, "Coordinator", made))
        stack.enter_context(patch.object(batches, "driver_limit", every_third))
        stack.enter_context(patch.object(Keeper, "start", lambda _: None))  # its thread would not be the world's
        for module in (options, query, writers):
            stack.enter_context(patch.object(module, "read_text", read_text))
        stack.enter_context(patch.object(options, "CommitPolicy", SimpleNamespace(of=policy_of_user)))
        stack.enter_context(patch.object(writers, "newest_batch", lambda root: max(world.folders[root].offsets)))
        stack.enter_context(patch.object(pipeline_log, "open_store", _folders_store(world)))
        stack.enter_context(patch.object(TaskContext, "get", lambda: world.current and world.current.context))
        yield


def _folders_store(world: World) -> Callable[..., Any]:
    def open_store(url: str, *, pipeline: str, existing: bool) -> Any:  # noqa: ARG001 - it is always there
        store = world.folders[url.removesuffix("/onceward")].store
        assert pipeline == store.audit.audit.pipeline
        return store

    return open_store


def _audited(audit: Audit, sweep: Callable[..., Swept]) -> Callable[..., Swept]:
    """A sweep that nobody disturbs leaves nothing behind."""

    def audited(
        writer: LogWriter,
        sinks: Iterable[TwoPhaseCommitSink[Any]],
        *,
        abandoned: bool = False,
        busy: bool = False,
        skip: Collection[str] = (),
        **how: Any,
    ) -> Swept:
        log, disturbed = audit.logs[writer.token.log], audit.world.disturbed
        store: Any = writer.store  # a FakeStore
        outdated = store.is_outdated
        lingering = log.audit.lingering(log)
        swept = sweep(writer, sinks, abandoned=abandoned, busy=busy, skip=skip, **how)
        newest = (log.start, log.writer) == (writer.token.start, writer.token.writer_id)
        if swept.left or busy or skip:
            return swept  # it said so, and is tried again
        names = {sink.name for sink in sinks}
        here = {kind_of(name) for name in names}  # nobody asks the target of a sink that was taken out
        meant = [txn for txn in lingering if txn.sink in names or (abandoned and target_of(txn) in here)]
        # Of a START that only a standby's log had, nothing is known until the log has come as far.
        left = [t for t in meant if t.state == "prepared" and not t.ending and t.writer <= writer.token.start]
        if newest and left and not outdated and disturbed == audit.world.disturbed:
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
