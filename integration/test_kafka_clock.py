"""The time that is left for a transaction is the coordinator's, whatever the clock of whoever asks says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceward.operations import open_target

from .kafka_kit import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.testing.services import KafkaServer

TIMEOUT = 120
OLD = 6
"""Seconds of the transaction when it is asked for."""
ROWS = pa.RecordBatch.from_pydict({"value": [b"x"]})


@pytest.mark.parametrize("behind", [0, 480, -480, 40_000, -40_000])
def test_the_time_left_does_not_depend_on_the_askers_clock(
    kafka: KafkaServer, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, behind: float
) -> None:
    bench = Bench(kafka.bootstrap_servers, topic(), transaction_timeout=TIMEOUT)
    committable = bench.write(ROWS)
    began = time.monotonic()
    time.sleep(OLD)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - behind)
    target = open_target("kafka", kafka.bootstrap_servers)
    assert target.expires is not None
    [end] = target.expires([committable])
    assert end is not None
    left = TIMEOUT - (time.monotonic() - began)
    assert end - time.time() == pytest.approx(left, abs=3)
