"""Messages that are read back from a topic, with the transaction that wrote each.

A record batch's header names the producer's id and epoch, and a producer epoch is used for one transaction here. No
client shows that header to its users, so partitions are fetched twice: once for the headers alone, and once as any
consumer reads them, in read_committed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from onceward.core.contract.place import Place
from onceward.core.contract.proof import Reread, RereadPiece
from onceward.core.contract.source import read_split
from onceward.core.errors import ConfigurationError, KafkaError
from onceward.core.kit import typed

from .admin import cluster_of
from .error_codes import Code, code_name
from .messages import hashed_message_columns
from .positions import Partition
from .source import KafkaSource
from .transaction_state import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onceward.core.contract.names import Scope
    from onceward.core.contract.proof import ProvenEpoch
    from onceward.core.contract.source import Position

    from .admin import Cluster

OUTSIDE: Final = "outside of any transaction"
_HEADER: Final = struct.Struct(">qiibIhiqqqhi")
"""Of a record batch ("Kafka protocol guide", Record Batch): base offset, length, leader epoch, magic, checksum,
attributes, last offset's distance, two timestamps, producer id and epoch, base sequence."""
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", pa.large_binary())])
_LENGTH_ENDS: Final = 12
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_FETCH_BYTES: Final = 16 * 2**20
_SECONDS: Final = 30.0


class Topic(Place):
    """A topic.

    Args:
        servers: Addresses of brokers.
        config: Further settings under librdkafka's names.
        name: Its name.
    """

    takes_copies = True

    def __init__(self, servers: str, config: Mapping[str, Any], name: str) -> None:
        super().__init__(f"kafka:{name}")
        self._servers, self._config, self._name = servers, config, name

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:  # noqa: ARG002
        """Read key, value and headers as read_committed consumers do, up to the last stable offset."""
        return reread_topic(self._servers, self._config, self._name)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all messages, as KafkaSource has them."""
        yield from messages(self._servers, self._config, self._name)

    def of_epoch(self, epoch: ProvenEpoch) -> Iterator[pa.RecordBatch]:
        """Read the messages between the offsets that the decision log has of an epoch."""
        start, end = offsets_in(epoch.start, self._name), offsets_in(epoch.end, self._name)
        if not end:
            raise ConfigurationError(f"epoch {epoch.epoch}: the decision log names no offsets of {self.title}")
        first, last = {self._name: dict.fromkeys(end, 0) | start}, {self._name: end}
        yield from messages(self._servers, self._config, self._name, first, last)

    def as_hashed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:  # noqa: ARG002
        """Return key, value and headers."""
        return hashed_message_columns(batch, own_topic=False)


def reread_topic(servers: str, config: Mapping[str, Any], topic: str) -> Reread:
    """Read a topic as read_committed consumers see it, up to its last stable offset.

    Args:
        servers: Addresses of brokers.
        config: Further settings under librdkafka's names.
        topic: Its name.

    Raises:
        KafkaError: The brokers do not answer, or refuse.
        SourceError: The same.
    """
    return Reread(_pieces(servers, config, topic), {}, _SCHEMA, lambda mark: mark == OUTSIDE)


def messages(
    servers: str, config: Mapping[str, Any], topic: str, start: Position = None, end: Position = None
) -> Iterator[pa.RecordBatch]:
    """Yield messages between two positions ({"topic": {"0": 123}}; None: all there is), with KafkaSource's columns.

    Raises:
        SourceError: The brokers do not answer, or do not hold them any more.
    """
    source = _source(servers, config, topic)
    first, last = source.range()
    for split in source.splits(first if start is None else start, last if end is None else end):
        for piece in read_split(source, split):
            yield piece.batch


def _source(servers: str, config: Mapping[str, Any], topic: str) -> KafkaSource:
    return KafkaSource(bootstrap_servers=servers, config=config, topics=[topic], ending="latest", include_headers=True)


def _pieces(servers: str, config: Mapping[str, Any], topic: str) -> Iterator[RereadPiece]:
    source = _source(servers, config, topic)
    cluster = cluster_of(source.settings)
    for split in source.splits(*source.range()):
        partition = Partition.named(split.unit)
        firsts, marks = _spans(cluster, partition, split.start, split.end)
        for piece in read_split(source, split):
            offsets = piece.batch.column("offset").to_pylist()
            of_rows = [marks[bisect_right(firsts, offset) - 1] for offset in offsets]
            positions = [f"{partition}@{offset}" for offset in offsets]
            yield RereadPiece(hashed_message_columns(piece.batch, own_topic=False), of_rows, positions)


def _spans(cluster: Cluster, partition: Partition, start: int, end: int) -> tuple[list[int], list[str]]:
    """Return the first offsets of the partition's record batches, in order, and the mark of each."""
    firsts, marks = [-1], [OUTSIDE]
    at = start
    while at < end:
        before = at
        for first, last, mark in _headers(_fetched(cluster, partition, at)):
            at = max(at, last + 1)
            if mark != marks[-1]:
                firsts.append(first)
                marks.append(mark)
        if at == before:
            raise KafkaError(f"{partition} gives no record batch at offset {at}, and its end is {end}")
    return firsts, marks


def _fetched(cluster: Cluster, partition: Partition, at: int) -> bytes:
    from kafka.protocol.consumer import FetchRequest  # noqa: PLC0415 - after wire.py, which silences its warnings

    leaders = cluster.wire.topics([partition.topic], seconds=_SECONDS).leaders
    fetch = FetchRequest.FetchTopic
    place = fetch.FetchPartition(partition=partition.number, fetch_offset=at, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch(topic=partition.topic, partitions=[place])],
        forgotten_topics_data=[],
        rack_id="",
        max_version=12,
    )
    [answer] = cluster.wire.exchange([(leaders.get(partition), request)], seconds=_SECONDS)
    if answer.result != Code.NONE:
        raise KafkaError(f"cannot fetch {partition}: {answer.detail or code_name(answer.result)}")
    [[found]] = [topic.partitions for topic in answer.response.responses]
    if found.error_code != Code.NONE:
        raise KafkaError(f"cannot fetch {partition} at offset {at}: {code_name(found.error_code)}")
    return bytes(found.records or b"")


def _headers(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield first and last offset of each whole record batch, and its mark."""
    at = 0
    while at + _HEADER.size <= len(data):
        first, length, _, magic, _, attributes, distance, _, _, producer, epoch, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size - _LENGTH_ENDS:
            raise KafkaError(f"a record batch at offset {first} says that it has {length} bytes: it is damaged")
        if at + _LENGTH_ENDS + length > len(data):
            return
        if magic < _MAGIC:
            raise KafkaError("a record batch is older than Kafka 0.11: it does not name its producer")
        yield first, first + distance, mark_of(producer, epoch) if attributes & _TRANSACTIONAL else OUTSIDE
        at += _LENGTH_ENDS + length


def offsets_in(value: Any, topic: str) -> dict[str, int]:
    """Return a topic's offsets from the positions in a decision, with any number of sources: JSON, or text of it."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        value = typed.decode(value, Any)
    if isinstance(value, dict):
        numbers = value.get(topic)
        if isinstance(numbers, dict) and all(isinstance(offset, int) for offset in numbers.values()):
            return numbers
        value = list(value.values())
    offsets: dict[str, int] = {}
    for part in value if isinstance(value, list) else ():
        offsets |= offsets_in(part, topic)
    return offsets
