"""Look at everything under onceward's names: what the targets hold, and what the decision logs say of it.

The targets are listed first and the logs read afterwards, so that what is decided in between is not called in doubt.
What a waiting decision names is added even where the target no longer has it open: it may be committed already, or
lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ...core.checkpoint.standing import Standing, advice, standing_of
from ...core.errors import ConfigurationError
from ...core.log import read
from ...core.names import Scope
from ...core.transaction import ANY_EPOCH, Committable, ExternalState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...core.checkpoint import Participant
    from ...core.log import LogView
    from .logs import Log
    from .places import Place

_HELD = frozenset({ExternalState.OPEN, ExternalState.PREPARED})


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction, as `--json` shows it.

    Attributes:
        pipeline: Whose it is.
        sink: Of which of its sinks.
        transaction: Its name in the target.
        place: Which target.
        standing: What the decision log says.
        state: What the target says.
        epoch: Of the data; None if the target cannot tell.
        subtask: None if the target cannot tell.
        rows: Of a decided one; None if the target cannot tell.
        next: What happens with it, or what can be done.
        committable: Its whole handle.
    """

    pipeline: str
    sink: str
    transaction: str
    place: str
    standing: Standing
    state: ExternalState
    epoch: int | None
    subtask: int | None
    rows: int | None
    next: str
    committable: Committable

    @property
    def held(self) -> bool:
        """Whether the target has it open or prepared."""
        return self.state in _HELD


@dataclass(frozen=True)
class _Seen:
    committable: Committable
    place: str
    state: ExternalState


def survey(logs: Sequence[Log], places: Sequence[Place], pipeline: str | None = None) -> list[Found]:
    """What is open, prepared, or waits for its commit.

    Args:
        logs: The decision logs that are known.
        places: Where to look.
        pipeline: Look at this one alone; None: at all.

    Raises:
        SinkError: A target did not answer.
        StoreError: A store did not answer.
    """
    known = {log.pipeline for log in logs}
    seen = [found for place in places for found in _listed(place, known, pipeline)]
    views = {log.pipeline: read(log.store) for log in logs}
    for name, view in views.items():
        if pipeline in (None, name):
            seen += _waiting(view, places, {_name(found.committable) for found in seen})
    return [_found(found, views.get(found.committable.pipeline)) for found in seen]


def holder(committable: Committable, places: Iterable[Place]) -> Place:
    """The place that a committable's transaction is in.

    Raises:
        ConfigurationError: None of these.
    """
    for place in places:
        if place.holds(committable.kind, committable.sink):
            return place
    raise ConfigurationError(
        f"transactions of kind {committable.kind} (sink {committable.sink}) can be reached through none of the targets "
        "given: give --bootstrap-servers, --dsn, or the pipeline's own --sinks module:name",
        pipeline=committable.pipeline,
    )


def participants(committables: Iterable[Committable], places: Sequence[Place]) -> Mapping[str, Participant]:
    """The sinks of these, by name.

    Raises:
        ConfigurationError: A sink can be reached through none of the places.
    """
    return {c.sink: holder(c, places).sink(c.sink) for c in committables}


def _listed(place: Place, known: set[str], pipeline: str | None) -> Iterable[_Seen]:
    for names in sorted(place.names(known)):
        if pipeline not in (None, names.pipeline):
            continue
        sink = place.sink(names.sink)
        listed = list(sink.lingering(Scope(names.pipeline, names.sink, "")))
        for committable, state in zip(listed, sink.inspect_many(listed), strict=True):
            # Listed is held, for sinks that cannot say more, and for what has ended since nobody knows better.
            yield _Seen(committable, place.title, ExternalState.PREPARED if state is ExternalState.UNKNOWN else state)


def _waiting(view: LogView, places: Sequence[Place], seen: set[tuple[str, ...]]) -> Iterable[_Seen]:
    """What the undone decision names and no listing showed."""
    decided = view.undone.committables if view.undone is not None else ()
    for committable in (c for c in decided if _name(c) not in seen):
        try:
            place = holder(committable, places)
        except ConfigurationError:
            yield _Seen(committable, "not asked", ExternalState.UNKNOWN)
            continue
        [state] = place.sink(committable.sink).inspect_many([committable])
        yield _Seen(committable, place.title, state)


def _name(committable: Committable) -> tuple[str, ...]:
    return (committable.pipeline, committable.sink, committable.transaction)


def _found(seen: _Seen, view: LogView | None) -> Found:
    standing = standing_of(seen.committable, view)
    decided = view.named(seen.committable) if view is not None and standing is Standing.DECIDED else None
    committable = decided or seen.committable  # the decision's knows more
    dated = committable.epoch != ANY_EPOCH
    return Found(
        pipeline=committable.pipeline,
        sink=committable.sink,
        transaction=committable.transaction,
        place=seen.place,
        standing=standing,
        state=seen.state,
        epoch=committable.epoch if dated else None,
        subtask=committable.subtask if dated else None,
        rows=committable.rows or None,
        next=advice(standing, seen.state),
        committable=committable,
    )
