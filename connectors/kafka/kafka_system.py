"""A Kafka cluster as commands ask it: its transactions, its topics, and whether it is set up well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.connector import SystemAddress
from onceward.core.contract.targets import Target

from .admin import check_reachable, cluster_of
from .checks import check_kafka, check_parts
from .clock import clock_behind
from .connector import KafkaConnector
from .ownership import open_elsewhere, open_names, sinks_at_brokers
from .reread import Topic
from .settings import SECURITY, KafkaSettings
from .sink import KafkaSink
from .source import KafkaSource
from .transaction_state import KIND, Prepared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource
    from onceward.core.contract.targets import OtherTransaction
    from onceward.core.contract.transaction import Committable


class KafkaSystem(KafkaConnector):
    """A Kafka cluster, with the packages that ask it."""

    def target(self) -> Target:
        """List and end transactions of any pipeline: a handle has all that commit and abort need."""
        settings = KafkaSettings(self.address, self.settings)

        def names(_: Collection[str]) -> Iterable[tuple[str, str]]:
            check_reachable(settings)
            return {scope[:2] for scope in open_names(cluster_of(settings).transactions)}

        def others() -> Sequence[OtherTransaction]:
            check_reachable(settings)
            return open_elsewhere(cluster_of(settings).transactions)

        def expires(committables: Sequence[Committable]) -> list[float | None]:
            prepared = [Prepared.of(committable) for committable in committables]
            handles = [one.handle for one in prepared if one is not None]
            transactions = cluster_of(settings).transactions
            described = transactions.describe([handle.transactional_id for handle in handles])
            behind = max((clock_behind(transactions, handle) for handle in handles[:1]), default=0.0)
            ends = [
                None if one is None else one.ends_at(described[one.handle.transactional_id].timeout_ms)
                for one in prepared
            ]
            return [None if end is None else end - behind for end in ends]

        return Target(
            title=f"Kafka at {self.address}",
            names=names,
            known=lambda pipeline: sinks_at_brokers(cluster_of(settings).transactions, pipeline),
            holds=lambda kind, _: kind == KIND,
            sink=lambda name: KafkaSink(name, bootstrap_servers=self.address, config=self.settings),
            expires=expires,
            others=others,
        )

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:
        """Check settings of brokers and topics, consumers, and rights."""
        return check_kafka(KafkaSettings(self.address, self.settings), names, pipeline)

    @classmethod
    def check_parts(
        cls, sinks: Sequence[Sink], sources: Sequence[ResettableSource], pipeline: str | None
    ) -> Iterable[Finding]:
        """Check the clusters and topics of sinks and sources."""
        return check_parts(sinks, sources, pipeline)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Ask any broker for metadata."""
        if isinstance(sink, KafkaSink):
            check_reachable(sink.settings)

    @classmethod
    def address_of(cls, part: Sink | ResettableSource) -> SystemAddress | None:
        """Return the bootstrap servers; settings of the login and of TLS may hold secrets, and are left out."""
        if not isinstance(part, KafkaSink | KafkaSource):
            return None
        secret = any(part.settings.get(name) is not None for name in SECURITY)
        topic = part.topic if isinstance(part, KafkaSink) else None
        servers = str(part.settings["bootstrap.servers"])
        return SystemAddress(servers, missing=cls.login if secret else "", place=topic or "")

    @classmethod
    def readers_lag(cls, sink: Sink) -> int | None:
        """Count the records beyond the last stable offset of the sink's topic."""
        return sink.last_stable_offset_lag() if isinstance(sink, KafkaSink) else None

    def place(self, name: str) -> Topic:
        """Return a topic."""
        return Topic(self.address, self.settings, name)
