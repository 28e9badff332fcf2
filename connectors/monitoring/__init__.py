"""Metrics and lineage of a process's pipelines, made of the events that core tells."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from . import lineage, metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["lineage", "metrics"]

_log = logging.getLogger("onceward.observers")
_KNOWN: Final[Mapping[str, Mapping[str, Callable[[], None]]]] = {
    metrics.VARIABLE: {"prometheus": metrics.into_folder, "opentelemetry": metrics.opentelemetry},
    lineage.VARIABLE: {"openlineage": lineage.openlineage},
}
"""Observers that each environment variable may ask for, by the variable and the observer's name."""
_asked: Final[set[tuple[str, str]]] = set()


def start_if_asked() -> None:
    """Start what ONCEWARD_METRICS and ONCEWARD_LINEAGE name, in a process that no user's code runs in.

    Several names have a comma in between. A mistake is logged, and fails nothing.
    """
    names = {(variable, name.strip()) for variable in _KNOWN for name in os.environ.get(variable, "").split(",")}
    for variable, name in sorted(names - _asked):
        _asked.add((variable, name))
        start = _KNOWN[variable].get(name)
        try:
            if start is not None:
                start()
            elif name:
                _log.warning("%s=%s is unknown: give %s", variable, name, " or ".join(_KNOWN[variable]))
        except Exception as error:  # noqa: BLE001 - an exporter's
            _log.warning("nothing is recorded in this process, though %s=%s: %r", variable, name, error)
