"""What a process needs at first in which Spark runs onceward, and no code of the user's."""

from __future__ import annotations

from onceward.connectors.monitoring import start_if_asked
from onceward.core.kit.json_logs import show_if_asked


def observe_if_asked() -> None:
    """Show log records, and record metrics and lineage, as the environment asks.

    Raises:
        ConfigurationError: ONCEWARD_LOG is not a level.
    """
    show_if_asked()
    start_if_asked()
