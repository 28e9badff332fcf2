"""What can go wrong with local services."""

from __future__ import annotations

from onceward.core.errors import ExternalError


class DevServiceError(ExternalError):
    """A local Kafka broker or PostgreSQL server could not be fetched, started or stopped. Says what to do."""
