"""Make a failing run short: leave out disturbances and simplify the configuration as long as the same law breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .plan import Plan
    from .run import Outcome


def shrink(plan: Plan, law: str, run: Callable[[Plan], Outcome], *, tries: int = 400) -> Plan:
    """The smallest plan found that still breaks `law`."""
    left = tries
    better = True
    while better and left > 0:
        better = False
        for candidate in _smaller(plan):
            left -= 1
            violation = run(candidate).violation
            if violation is not None and violation.law == law:
                plan, better = candidate, True
                break
            if left <= 0:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    count = len(plan.events)
    size = count // 2
    while size >= 1:  # halves first, then ever smaller parts
        for start in range(0, count, size):
            yield plan.without(set(range(start, min(start + size, count))))
        size //= 2
    config = plan.config
    changes: list[dict[str, object]] = []
    if len(config.sinks) > 1:
        changes.extend({"sinks": (sink,)} for sink in config.sinks)
    if config.subtasks > 1:
        changes.append({"subtasks": 1})
    if config.speculate:
        changes.append({"speculate": ()})
    if config.records > 1:
        changes.append({"records": config.records - 1})
    changes.extend({name: False} for name in ("unique", "same_process", "adopt") if getattr(config, name))
    if config.tries > 0:
        changes.append({"tries": 0})
    for change in changes:
        yield replace(plan, config=replace(config, **change))  # type: ignore[arg-type]
