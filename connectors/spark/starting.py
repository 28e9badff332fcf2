"""The start of a query that `exactly_once` has described: what Python does before Spark runs it, and what it refuses.

Describing a query changes nothing outside of this process. Targets are checked, and what is missing in them is created,
when `start` is called, in the caller's thread: so its errors are raised there, and not in a micro-batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from onceward.core.errors import ConfigurationError
from onceward.core.log.store import EXPLAINING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def refuse_other_targets(writer: Any) -> None:
    """Make a writer refuse every method that would set another target, and so remove onceward from the query."""

    def refuse(name: str, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"{name}(…) would replace what exactly_once has set up: the rows would reach none of its sinks. Give "
            "exactly_once all sinks, and call only trigger, outputMode, queryName, option and start on what it returns"
        )

    for name in ("format", "foreach", "foreachBatch", "toTable"):
        setattr(writer, name, partial(refuse, name))


def check_start(place: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Refuse arguments of `start` that name another target.

    Raises:
        ConfigurationError: There is one.
    """
    if place or not options.keys().isdisjoint({"path", "format", "partitionBy"}):
        raise ConfigurationError(
            "start(path, format, partitionBy) would replace what exactly_once has set up: give it outputMode=, "
            "queryName= and options only"
        )


def prepare_at_start(writer: Any, prepare: Callable[[], None], watch: Callable[[Any], None]) -> None:
    """Make a writer of a classic session prepare the query's targets when it is started, and have the query watched.

    Args:
        writer: The DataStreamWriter.
        prepare: Checks the targets, and creates what is missing in them.
        watch: Watches the query that has started.
    """
    begin = type(writer).start

    def start(*place: Any, **options: Any) -> Any:
        check_start(place, options)
        if options.get("outputMode") is not None:  # so that `prepare` sees it, too
            writer.outputMode(options.pop("outputMode"))
        if not EXPLAINING.get():
            prepare()
        query = begin(writer, **options)
        if not EXPLAINING.get():
            watch(query)
        return query

    writer.start = start
