"""A server of Redis or Valkey as commands ask it: its keys, and whether it is set up well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import check_server
from .client import RedisSettings, read_facts
from .connector import RedisConnector
from .forms import Keys
from .sink import RedisSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource


class RedisSystem(RedisConnector):
    """A server of Redis or Valkey, with the packages that ask it."""

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check that the server takes writes and keeps them."""
        return check_server(RedisSettings(self.address))

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check each sink's server once."""
        targets = {(sink.settings, sink.durable, sink.replicas) for sink in sinks if isinstance(sink, RedisSink)}
        for settings, durable, replicas in targets:
            for finding in check_server(settings, durable=durable, replicas=replicas):
                yield finding.of(settings.shown)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Ask the server about itself."""
        if isinstance(sink, RedisSink):
            read_facts(sink.settings)

    def place(self, name: str) -> Keys:
        """Return the keys that a sink's `key` gives."""
        return Keys(self.address, name)
