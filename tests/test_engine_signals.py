"""A signal that ends the process ends a pipeline with a checkpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from onceward.core import open_store
from onceward.core.engine.reference import Decided, resolve_reference
from onceward.core.log import read

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import signal, sys, time
from onceward import FileBackend, MemoryBackend, Pipeline, open_store
from onceward.core import CheckpointConfig
from onceward.sources import SequenceSource
from tests.engine_kit import RunningSum, numbers
from tests.sink_kit import Target, TargetSink

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process would ignore it

class Endless(SequenceSource):
    bounded = False

pipeline = Pipeline("p", store=open_store(sys.argv[1], pipeline="p"), checkpointing=CheckpointConfig())
stream = pipeline.source(Endless(numbers(50)), uid="in").key_by("k").process(RunningSum(), uid="sum")
target = Target()
stream.sink(TargetSink(target))
if sys.argv[2] == "wait":
    pipeline.start()
while_running = pipeline.wait if sys.argv[2] == "wait" else pipeline.run
import threading
def ready():
    while target.written < 50:
        time.sleep(0.01)
    print("ready", flush=True)
threading.Thread(target=ready, daemon=True).start()
while_running()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "wait"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path: Path, number: signal.Signals, how: str):
    log = str(tmp_path / "log")
    command = [sys.executable, "-c", PROGRAM, log, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        code = process.wait(30)
    assert code in {128 + number, -number}
    newest = Decided.of(read(open_store(log, pipeline="p")).newest)
    assert newest is not None
    metadata, _ = resolve_reference(newest.checkpoint)
    assert [subtask.position for subtask in metadata.operators["in"].subtasks] == [{"0": 50}]
