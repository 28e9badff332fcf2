"""Targets: where transactions are, and the sinks by which they are listed and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checkpoint.subtask import DirectlyWritten
from ..errors import ConfigurationError
from .refusals import Refusal, RefusedError
from .sink import DirectSink, Sink, TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from .transaction import Committable


@dataclass(frozen=True)
class OtherTransaction:
    """A transaction of another application, which holds back readers of the same places.

    Attributes:
        name: Name of the transaction in the target; empty if this client may not know it.
        producer: Client that has it open, in the target's words.
        places: Places that it has written to.
        started: Time at which it began, in seconds since 1970 on the target's clock; None if that is not known.
    """

    name: str
    producer: str
    places: tuple[str, ...]
    started: float | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """Where transactions are.

    Attributes:
        title: Title of the target, for people.
        names: Function that returns the names, pipeline and sink, under which transactions are open or prepared; its
            argument is the pipelines that are asked for by name. It raises ConfigurationError if the target can be
            searched by a pipeline's name only, and SinkError if the target did not answer.
        known: Function that returns the sinks' names under which a pipeline of this name has written here, as far as
            the target remembers.
        holds: Function that returns whether committables of this kind and sink are here.
        sink: Function that returns the sink by which transactions under this sink's name are listed and ended.
        expires: Function that returns the time at which the target ends each of these open transactions by itself, in
            seconds since 1970 on the clock of this machine (which may be wrong: the age that the target knows counts),
            and None if it never does; None if its sinks know that.
        others: Open transactions of other applications, as far as this client may see them; None if the target does not
            list any.
    """

    title: str
    names: Callable[[Collection[str]], Iterable[tuple[str, str]]]
    known: Callable[[str], Iterable[str]]
    holds: Callable[[str, str], bool]
    sink: Callable[[str], TwoPhaseCommitSink[Any]]
    expires: Callable[[Sequence[Committable]], Sequence[float | None]] | None = None
    others: Callable[[], Sequence[OtherTransaction]] | None = None


def sinks_target(sinks: Iterable[Sink], title: str) -> Target:
    """Return a target of the pipeline's own sinks, of any class. It lists the transactions of pipelines that are named.

    Args:
        sinks: The sinks; names are unique.
        title: Title of the target, such as the origin of the sinks, for people.

    Raises:
        ConfigurationError: Two sinks have the same name.
    """
    by_name: dict[str, TwoPhaseCommitSink[Any]] = {}
    for sink in sinks:
        if sink.name in by_name:
            raise ConfigurationError(f"{title}: two sinks are called {sink.name!r}; a name is unique in a pipeline")
        if isinstance(sink, DirectSink):
            by_name[sink.name] = DirectlyWritten(sink)
        elif isinstance(sink, TwoPhaseCommitSink):
            by_name[sink.name] = sink

    def names(pipelines: Collection[str]) -> Iterable[tuple[str, str]]:
        if not pipelines:
            raise RefusedError("sinks list transactions by the name of their pipeline", Refusal.NEEDS_PIPELINE)
        return [(pipeline, sink) for pipeline in pipelines for sink in by_name]

    return Target(
        title=title,
        names=names,
        known=lambda _: by_name,
        holds=lambda _, sink: sink in by_name,
        sink=by_name.__getitem__,
    )
