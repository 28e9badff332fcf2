"""One Kafka job in the embedded engine and in Quix Streams, both exactly once, commits every second.

    python -m venv quix && quix/bin/pip install quixstreams     # it pins an older client: an environment of its own
    python benchmarks/engine_peer.py quix/bin/python [--rows 200000] [--repeats 3]

Orders (JSON, keyed) to a running sum for each user in RocksDB to another topic: row by row in both, and on whole record
batches in onceward. Seconds from the first result that a read_committed consumer sees until it has seen each user's
last, and from the process's start; in turn, the ratio run by run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward.testing.services import dev_services

HERE = Path(__file__).parent
PARTITIONS = 1
USERS = 1000
PEER = "Quix Streams"


def topic(servers: str, rows: int = 0) -> str:
    """Create a topic with orders in it."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 20})
    chance = random.Random(7)
    for number in range(rows):
        user = f"user{chance.randrange(USERS)}"
        producer.produce(name, json.dumps({"n": number, "user": user, "amount": amount(number)}), user)
        if number % 10000 == 9999:
            producer.flush()
    producer.flush()
    return name


def amount(number: int) -> int:
    """Return the amount of an order."""
    return number % 100


def once(python: str, script: str, servers: str, source: str, rows: int) -> tuple[float, float]:
    """Return the seconds between the first and the last result, and from the start to the last."""
    whole = sum(map(amount, range(rows)))
    last: dict[bytes, bytes] = {}
    target = topic(servers)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(target, p, 0) for p in range(PARTITIONS)])
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
        began = time.monotonic()
        job = subprocess.Popen([python, str(HERE / script), servers, source, target, folder])
        try:
            first = now = 0.0
            while sum(json.loads(value)["total"] for value in last.values()) != whole:
                messages = consumer.consume(100_000, timeout=0.1)
                now = time.monotonic()
                first = first or (now if messages else 0.0)
                last |= {message.key(): message.value() for message in messages}
                assert job.poll() is None, f"{script} has ended"
            return now - first, now - began
        finally:
            job.kill()
            job.wait()
            consumer.close()


def main() -> None:
    """Compare both engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quix", nargs="?", help="a Python that has quixstreams; without it, onceward runs alone")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    memory = psutil.virtual_memory().total / 2**30
    print(f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {platform.system()}")
    jobs = {
        "onceward": (sys.executable, "engine_job.py"),
        "onceward, batches": (sys.executable, "engine_job_batches.py"),
    }
    if arguments.quix is not None:
        jobs[PEER] = (arguments.quix, "engine_job_quix.py")
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder, dev_services(Path(folder) / "s") as services:
        servers = services.bootstrap_servers
        source = topic(servers, arguments.rows)
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for number in range(arguments.repeats + 1):
            for name, (python, script) in jobs.items():
                seconds = once(python, script, servers, source, arguments.rows)
                print(f"{name:18} {seconds[0]:7.2f} s first to last, {seconds[1]:7.2f} s in all", flush=True)
                if number:  # the first time is to warm up
                    results[name].append(seconds)
    for name, runs in results.items():
        print(
            f"{name:18} {arguments.rows / statistics.median(whole for _, whole in runs):10,.0f} rows/s, start included"
        )
    for name in (name for name in jobs if PEER in jobs and name != PEER):
        for which, text in ((0, "first to last result"), (1, "start included")):
            ratios = [b[which] / a[which] for a, b in zip(results[name], results[PEER], strict=True)]
            middle = statistics.median(ratios)
            print(f"{name} against {PEER}, {text}: {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
