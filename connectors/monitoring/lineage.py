"""An OpenLineage event for each completed epoch: who is told of it, if openlineage-python is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from onceward.core.contract.events import observe
from onceward.core.errors import MissingExtraError

if TYPE_CHECKING:
    from .run_events import RunEvents

__all__ = ["openlineage"]

VARIABLE: Final = "ONCEWARD_LINEAGE"
NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
"""The library's own variable for the namespace of jobs."""
_lineages: Final[dict[int, tuple[Any, RunEvents]]] = {}


def openlineage(client: Any = None, namespace: str | None = None) -> None:
    """Emit an OpenLineage event for each epoch that a pipeline of this process completes.

    Args:
        client: An OpenLineageClient; None for one that its environment variables configure (OPENLINEAGE_URL,
            OPENLINEAGE_CONFIG, OPENLINEAGE__TRANSPORT__TYPE, …). The epoch waits for `emit`: choose an asynchronous
            transport (`async_http`) where the server may be slow.
        namespace: Namespace of the jobs; None for OPENLINEAGE_NAMESPACE, or `default`.

    Raises:
        MissingExtraError: openlineage-python is not installed.
    """
    try:
        from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra
    except ImportError as error:
        advice = "openlineage-python is not installed: pip install 'onceward[openlineage]'"
        raise MissingExtraError(advice, name=error.name) from error
    from .run_events import RunEvents  # noqa: PLC0415 - it imports the extra

    key = 0 if client is None else id(client)
    if key not in _lineages:
        sender = client if client is not None else OpenLineageClient()
        lineage = RunEvents(sender, namespace or os.environ.get(NAMESPACE, "default"))
        _lineages[key] = client, lineage
        observe(lineage)
