"""Which share of a decision waits for which: rows that refer to others are committed after these.

Shares that cannot expire are independent, but for one reason: a target may refuse rows that refer to rows which are not
there yet (a foreign key). Each sink says to whose rows its own refer. The order holds within a decision; epochs follow
each other anyway.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, OncewardError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..sink import TwoPhaseCommitSink
    from .share import Share


def check_order(sinks: Mapping[str, TwoPhaseCommitSink[Any]]) -> None:
    """Refuse sinks whose rows refer to each other in a circle, and what a sink refuses beside the others.

    Raises:
        ConfigurationError: They do.
        SinkError: A target did not answer.
    """
    if len(sinks) < 2:  # noqa: PLR2004 - a pair
        return
    try:
        TopologicalSorter({name: _before(sink, sinks.values()) for name, sink in sinks.items()}).prepare()
    except CycleError as error:
        raise ConfigurationError(
            f"the targets of sinks {', '.join(sorted(set(error.args[1])))} refer to each other, so neither can be "
            "committed first: drop one of the foreign keys, or write one of the tables in a pipeline of its own"
        ) from None


def find_order(shares: Sequence[Share]) -> None:
    """Note in each share those that it waits for; one whose sink cannot say so now is asked again next time."""
    by_name = {share.sink.name: share for share in shares if share.committables and not share.expires}
    for share in shares:
        if share.sink.name not in by_name or len(by_name) == 1:
            share.after = ()
        elif share.after is None:
            _ask(share, by_name)
    try:
        TopologicalSorter({name: [one.sink.name for one in s.after or ()] for name, s in by_name.items()}).prepare()
    except CycleError:  # refused at the next start; transactions that were prepared need no order
        for share in by_name.values():
            share.after = ()


def _ask(share: Share, by_name: Mapping[str, Share]) -> None:
    try:
        names = _before(share.sink, [one.sink for one in by_name.values()])
    except OncewardError as error:
        share.detail = str(error)
        share.after = None if error.retryable else ()
        return
    share.after = tuple(by_name[name] for name in names)


def _before(sink: TwoPhaseCommitSink[Any], sinks: Collection[TwoPhaseCommitSink[Any]]) -> Collection[str]:
    return sink.commits_after([other for other in sinks if other is not sink])
