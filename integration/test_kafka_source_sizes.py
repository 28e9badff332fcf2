"""Records of any size arrive, whole and in order, in batches that no reader's memory is too small for."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from onceward.core.contract.source import read_split
from onceward.core.kit.pieces import PIECE_BYTES, size_of

from .kafka_source_kit import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer

pytestmark = pytest.mark.kafka
LARGEST = 64 * 2**20
KB, MB = 1000, 1_000_000


class Backlog(NamedTuple):
    """What lies in a partition.

    Attributes:
        records: How many.
        sizes: Bytes of a record's value, in turns.
        codec: How they are compressed.
        noise: Bytes of each value that no codec makes smaller.
    """

    records: int
    sizes: tuple[int, ...]
    codec: str = "none"
    noise: int = 8

    def value(self, number: int) -> bytes:
        """The value of a record."""
        size = self.sizes[number % len(self.sizes)]
        noise = random.Random(number).randbytes(min(self.noise, size))
        return noise + bytes(size - len(noise))

    def write(self, servers: str, topic: str) -> None:
        """Fill the partition."""
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": self.codec,
                "message.max.bytes": LARGEST,
                "linger.ms": 20,
                "queue.buffering.max.kbytes": 200_000,
            }
        )
        for number in range(self.records):
            while len(producer) * max(self.sizes) > LARGEST:
                producer.poll(0.01)
            producer.produce(topic, self.value(number), partition=0)
        assert producer.flush(120) == 0


WAYS = [
    pytest.param(Backlog(90, (MB,)), id="90-of-1MB"),
    pytest.param(Backlog(3_000, (10, 10, 10, 60 * KB), "lz4"), id="10-bytes-among-60kB"),
    pytest.param(Backlog(4, (50 * MB, 10), "zstd"), id="50MB"),
    pytest.param(Backlog(2_300, (MB,), "lz4"), id="2300-of-1MB", marks=pytest.mark.nightly),
    pytest.param(Backlog(2_300, (MB,), "zstd"), id="2300-of-1MB-zstd", marks=pytest.mark.nightly),
    pytest.param(Backlog(2_300, (MB,), "lz4", 300 * KB), id="2300-of-1MB-hardly-compressed", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("headers", [False, True], ids=["arrays", "objects"])
@pytest.mark.parametrize("backlog", WAYS)
def test_each_record_arrives_whatever_the_size_of_the_backlog(
    kafka: KafkaServer, topic: Callable[..., str], backlog: Backlog, headers: bool
):
    """2,300 records of 1 MB were one batch of more than 2 GiB, of which 2,119 arrived, without an error."""
    name = topic(max_message_bytes=str(LARGEST))
    backlog.write(kafka.bootstrap_servers, name)
    source = Writer(kafka.bootstrap_servers).source(name, include_headers=headers)
    position = source.start()
    [split] = source.splits(position, source.latest(position))
    number = 0
    for piece in read_split(source, split):
        assert piece.batch.num_rows == 1 or piece.batch.nbytes <= PIECE_BYTES + 100 * piece.batch.num_rows
        for value in piece.batch["value"]:
            assert zlib.crc32(value.as_buffer()) == zlib.crc32(backlog.value(number)), number
            number += 1
    assert number == backlog.records


def test_batches_are_bounded_with_the_bytes_of_headers(kafka: KafkaServer, topic: Callable[..., str]):
    """300 records with small values and headers of 100 kB were one batch of 30 MB."""
    name, size = topic(), 100 * KB
    Writer(kafka.bootstrap_servers).send(name, range(300), headers=[("h", bytes(size))])
    source = Writer(kafka.bootstrap_servers).source(name, include_headers=True)
    position = source.start()
    [split] = source.splits(position, source.latest(position))
    batches = [piece.batch for piece in read_split(source, split)]
    assert [len(header[0]["value"].as_py()) for batch in batches for header in batch["headers"]] == [size] * 300
    assert max(size_of(batch) for batch in batches) <= PIECE_BYTES


READER = """
import sys
from onceward import KafkaSource
source = KafkaSource(bootstrap_servers=sys.argv[1], topics=[sys.argv[2]], include_headers=sys.argv[3] == "True")
position = source.start()
rows = 0
for split in source.splits(position, source.latest(position)):
    for piece in source.read(split):
        rows += piece.batch.num_rows
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(rows, int(peak) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("headers", [False, True], ids=["arrays", "objects"])
def test_a_backlog_is_read_in_little_memory_however_well_it_is_compressed(
    kafka: KafkaServer, topic: Callable[..., str], driver_environment: dict[str, str], headers: bool
):
    """librdkafka decompresses a response as a whole: these records are 1 GB, and came in one response of 100 kB."""
    name, backlog = topic(max_message_bytes=str(LARGEST)), Backlog(1_000, (MB,), "zstd")
    backlog.write(kafka.bootstrap_servers, name)
    command = [sys.executable, "-c", READER, kafka.bootstrap_servers, name, str(headers)]
    done = subprocess.run(command, env=driver_environment, capture_output=True, text=True, timeout=60, check=True)
    rows, peak = map(int, done.stdout.split())
    assert rows == backlog.records
    assert peak < 600, f"{peak} MiB"  # 1,111 before
