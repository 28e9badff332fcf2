"""What onceward knows of Kafka beyond its sink and source; imported by every command, so without confluent-kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.connector import Connector, SystemAddress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource
    from onceward.core.contract.targets import OtherTransaction, Target
    from onceward.core.contract.transaction import Committable

    from .reread import Topic


_SERVER = r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"


class KafkaConnector(Connector):
    """A Kafka cluster; its settings are those of librdkafka."""

    name = "kafka"
    sink = "onceward.connectors.kafka.sink:KafkaSink"
    source = "onceward.connectors.kafka.source:KafkaSource"
    address_form = "HOST:PORT"
    place_form = "TOPIC"
    extra = "kafka"
    spark_format = "onceward.connectors.spark.formats.kafka_format:KafkaFormat"
    address_pattern = rf"{_SERVER}(?:,{_SERVER})*"
    place_pattern = r"[\w.][\w.-]{0,248}"
    login = "the settings of the login and of TLS: --set kafka:@FILE"

    def target(self) -> Target:
        """List and end transactions of any pipeline: a handle has all that commit and abort need."""
        from onceward.core.contract.targets import Target  # noqa: PLC0415 - what reads needs none of it

        from .admin import check_reachable, cluster_of  # noqa: PLC0415 - an extra
        from .clock import clock_behind  # noqa: PLC0415
        from .ownership import open_elsewhere, open_names, sinks_at_brokers  # noqa: PLC0415
        from .settings import KafkaSettings  # noqa: PLC0415
        from .sink import KafkaSink  # noqa: PLC0415
        from .transaction_state import KIND, Prepared  # noqa: PLC0415

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
        from .checks import check_kafka  # noqa: PLC0415 - an extra
        from .settings import KafkaSettings  # noqa: PLC0415

        return check_kafka(KafkaSettings(self.address, self.settings), names, pipeline)

    @classmethod
    def check_parts(
        cls, sinks: Sequence[Sink], sources: Sequence[ResettableSource], pipeline: str | None
    ) -> Iterable[Finding]:
        """Check the clusters and topics of sinks and sources."""
        from .checks import check_parts  # noqa: PLC0415 - an extra

        return check_parts(sinks, sources, pipeline)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Ask any broker for metadata."""
        from .admin import check_reachable  # noqa: PLC0415 - an extra
        from .sink import KafkaSink  # noqa: PLC0415

        if isinstance(sink, KafkaSink):
            check_reachable(sink.settings)

    @classmethod
    def address_of(cls, part: Sink | ResettableSource) -> SystemAddress | None:
        """Return the bootstrap servers; settings of the login and of TLS may hold secrets, and are left out."""
        from .settings import SECURITY  # noqa: PLC0415 - an extra
        from .sink import KafkaSink  # noqa: PLC0415
        from .source import KafkaSource  # noqa: PLC0415

        if not isinstance(part, KafkaSink | KafkaSource):
            return None
        secret = any(part.settings.get(name) is not None for name in SECURITY)
        topic = part.topic if isinstance(part, KafkaSink) else None
        servers = str(part.settings["bootstrap.servers"])
        return SystemAddress(servers, missing=cls.login if secret else "", place=topic or "")

    @classmethod
    def readers_lag(cls, sink: Sink) -> int | None:
        """Count the records beyond the last stable offset of the sink's topic."""
        from .sink import KafkaSink  # noqa: PLC0415 - an extra

        return sink.last_stable_offset_lag() if isinstance(sink, KafkaSink) else None

    def place(self, name: str) -> Topic:
        """Return a topic."""
        from .reread import Topic  # noqa: PLC0415 - an extra

        return Topic(self.address, self.settings, name)
