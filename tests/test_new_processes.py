"""What new Python processes of Spark import for onceward: a restart waits for each import, in several processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.connectors.spark.formats.formats import SinkFormat, formats
from onceward.core.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
RECEIVE = """
import numpy as np, pyarrow as pa
from onceward.connectors.kafka.positions import Partition
from onceward.connectors.kafka.consumed_batches import columns_batch
numbers = np.arange(3)
keys = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(np.zeros(4, np.int32)), pa.py_buffer(b"")])
print(columns_batch(
    Partition("t", 1), keys=keys, values=keys, offsets=numbers, times=numbers, kinds=numbers.astype(np.int32)
).num_rows)
"""
TELL = """
import onceward.connectors.spark.write.spark_task as task
from onceward.core.contract.transaction import Acknowledgement
task.write_partition = lambda *_: Acknowledgement(
    epoch=1, subtask=0, attempt=0, sinks=(), committables=(), retried=False, written=()
)
print(next(iter(task.write_and_tell([], [], [])))[task.ACK_COLUMN][0].as_py())
"""

AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-5)
STATEMENTS = (
    "from onceward.core.checkpoint import Coordinator",
    "from onceward.core.checkpoint import finish, sweep",
    "from onceward.core import open_store, Pipeline",
    "from onceward.core.log import LogStore",
    "from onceward import KafkaSink, exactly_once",
    "import onceward.connectors.spark.formats.kafka_format",
    "from onceward.connectors.spark import format_of, read_stream",
    "import onceward.core.checkpoint.recovery",
)
together = threading.Barrier(len(STATEMENTS))
def run(statement):
    together.wait()
    exec(statement, {})
threads = [threading.Thread(target=run, args=(each,)) for each in STATEMENTS]
for each in threads: each.start()
for each in threads: each.join()
"""


def loaded(code: str, *modules: str) -> list[str]:
    """Return which of the modules a new process loads that runs the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*(m for m in {modules!r} if m in sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    return done.stdout.splitlines()[-1].split()


def test_the_lookup_of_data_sources_imports_no_format() -> None:
    modules = sorted(path.stem for path in (ROOT / "src").glob("pyspark_onceward*.py"))
    heavy = ("pyarrow", "numpy", "onceward.connectors.spark.formats.formats")
    assert loaded(f"import {', '.join(modules)}", *heavy) == []


def test_what_reads_imports_nothing_that_only_writes() -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "topic"}
    read = f"import pyspark_onceward_kafka; pyspark_onceward_kafka.DefaultSource({options}).streamReader(None)"
    writing = (
        "core.log",
        "core.checkpoint",
        "core.contract.row_hash",
        "sinks",
        "connectors.spark.formats.format_writing",
        "connectors.kafka.sink",
    )
    others = ("pandas", "pyarrow.compute", "kafka", "urllib.request", "sqlalchemy")
    assert loaded(read, *(f"onceward.{name}" for name in writing), *others) == []
    assert loaded(read, "onceward.connectors.kafka.source") == ["onceward.connectors.kafka.source"]


@pytest.mark.parametrize("kind", formats(), ids=lambda kind: kind.name())
def test_what_the_lookup_finds_makes_the_format(kind: type[SinkFormat]) -> None:
    found = importlib.import_module(f"pyspark_{kind.name().replace('-', '_')}").DefaultSource
    made = found({"a": "b"})
    assert found.name() == kind.name()
    assert type(made) is kind
    assert made.options == {"a": "b"}


def test_a_format_without_the_packages_metadata_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module("pyspark_onceward_postgres").DefaultSource
    monkeypatch.setattr("onceward.core.contract.connector.connectors", dict)
    with pytest.raises(ConfigurationError, match=r"-postgres .* metadata is missing\. Install or send the wheel"):
        found({})
    reads_without = importlib.import_module("pyspark_onceward_kafka").DefaultSource({"topic": "t"})
    with pytest.raises(ConfigurationError, match=r"-kafka .* metadata is missing\. Install or send the wheel"):
        reads_without.writer(None, overwrite=False)


@pytest.mark.parametrize("code", [RECEIVE, TELL], ids=["rows of Kafka", "an acknowledgement"])
def test_a_worker_needs_no_pandas(code: str) -> None:
    assert loaded(code, "pandas") == []


def test_threads_may_import_at_the_same_time() -> None:
    """A package that imports a part of itself can wait for a thread that imports this part, and that one for it."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", AT_ONCE],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        assert done.stderr == ""
