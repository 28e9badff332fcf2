"""What onceward knows of Redis and Valkey beyond its sink; imported by every command, so without redis-py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.connector import Connector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource

    from .forms import Keys


class RedisConnector(Connector):
    """A server of Redis or Valkey."""

    name = "redis"
    sink = "onceward.connectors.redis.sink:RedisSink"
    address_form = "URL"
    place_form = "KEY"
    extra = "redis"

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check that the server takes writes and keeps them."""
        from .checks import check_server  # noqa: PLC0415 - an extra
        from .client import RedisSettings  # noqa: PLC0415

        return check_server(RedisSettings(self.address))

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check each sink's server once."""
        from .checks import check_server  # noqa: PLC0415 - an extra
        from .sink import RedisSink  # noqa: PLC0415

        targets = {(sink.settings, sink.durable, sink.replicas) for sink in sinks if isinstance(sink, RedisSink)}
        for settings, durable, replicas in targets:
            for finding in check_server(settings, durable=durable, replicas=replicas):
                yield finding.of(settings.shown)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Ask the server about itself."""
        from .client import read_facts  # noqa: PLC0415 - an extra
        from .sink import RedisSink  # noqa: PLC0415

        if isinstance(sink, RedisSink):
            read_facts(sink.settings)

    def place(self, name: str) -> Keys:
        """Return the keys that a sink's `key` gives."""
        from .forms import Keys  # noqa: PLC0415 - an extra

        return Keys(self.address, name)
