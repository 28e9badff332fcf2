"""One contract for every store of a decision log; tests/ runs it without services, integration/ on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from onceward.core.contract.policy import Backoff, CommitPolicy
from onceward.core.contract.transaction import Committable
from onceward.core.errors import FencedError, StoreError
from onceward.core.log import EpochInput, LogStore, LogWriter, read
from onceward.core.log.entries import key_of
from onceward.core.log.store import put_behind

_PUTTER = """
import sys
from onceward.core.log import open_store
url, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_store(url, pipeline="contract")
sys.stdin.readline()
for n in range(count):
    if store.put_if_absent(f"{n:020d}", f"{me}:{n}".encode()):
        print(n)
"""


def quick(tries: int = 3) -> CommitPolicy:
    """A policy without waiting."""
    return CommitPolicy(now=lambda: "", puts=Backoff(attempts=tries, sleep=lambda _: None))


def committables(count: int, log: str) -> list[Committable]:
    """As KafkaSink's, one for each subtask."""
    return [
        Committable(
            kind="kafka",
            pipeline="contract",
            sink="out",
            log=log,
            generation=0,
            epoch=0,
            subtask=subtask,
            transaction=f"onceward:1:contract:out:{log}:{subtask:016x}:0",
            handle={
                "producer_id": 4_000_000 + subtask,
                "epoch": 17,
                "started_ms": 1_764_000_000_000 + subtask,
                "partitions": {"results-of-all-regions": list(range(12))},
            },
            rows=1_000,
        )
        for subtask in range(count)
    ]


def offsets(partitions: int, records: int) -> dict[str, dict[str, int]]:
    """As KafkaSource's, for one topic."""
    return {"events-of-all-regions": {str(partition): 10**12 + records + partition for partition in range(partitions)}}


class StoreContract:
    """Subclass it, and give the fixture `store`; and `url`, if other processes can open the same store."""

    @pytest.fixture
    def url(self) -> str | None:
        return None

    def test_is_a_log_store(self, store: LogStore):
        assert isinstance(store, LogStore)
        assert store.describe()
        assert store.shared in (True, False)

    def test_empty_store_has_nothing(self, store: LogStore):
        assert store.list_keys() == []
        assert store.get(key_of(0)) is None

    def test_first_put_wins_and_later_ones_change_nothing(self, store: LogStore):
        assert store.put_if_absent(key_of(0), b"first") is True
        assert store.put_if_absent(key_of(0), b"second") is False
        assert store.put_if_absent(key_of(0), b"first") is False
        assert store.get(key_of(0)) == b"first"

    def test_values_come_back_byte_for_byte(self, store: LogStore):
        values = [b"", b"\0", bytes(range(256)) * 40, b"\r\n\n", "é漢".encode()]
        for n, value in enumerate(values):
            assert store.put_if_absent(key_of(n), value)
        assert [store.get(key_of(n)) for n in range(len(values))] == values

    def test_keys_are_listed_in_ascending_order(self, store: LogStore):
        for n in (10, 9, 100, 0, 11):
            store.put_if_absent(key_of(n), b"x")
        assert store.list_keys() == [key_of(n) for n in (0, 9, 10, 11, 100)]

    def test_delete_is_idempotent_and_reopens_the_slot(self, store: LogStore):
        store.put_if_absent(key_of(0), b"x")
        store.put_if_absent(key_of(1), b"y")
        store.delete(key_of(0))
        store.delete(key_of(0))
        store.delete(key_of(7))
        assert store.list_keys() == [key_of(1)]
        assert store.get(key_of(0)) is None
        assert store.put_if_absent(key_of(0), b"z")

    def test_what_is_put_behind_a_key_needs_that_key_and_how_its_value_begins(self, store: LogStore):
        assert not put_behind(store, key_of(1), b"x", key_of(0), b"fi")
        assert store.list_keys() == []
        store.put_if_absent(key_of(0), b"first \x00\xff")
        assert not put_behind(store, key_of(1), b"x", key_of(0), b"other")
        assert not put_behind(store, key_of(1), b"x", key_of(0), b"first \x00\xff, and more")
        assert put_behind(store, key_of(1), b"x", key_of(0), b"first \x00")
        assert not put_behind(store, key_of(1), b"y", key_of(0), b"first")
        store.delete(key_of(0))
        assert not put_behind(store, key_of(2), b"\x00\xff", key_of(0), b"first")
        assert put_behind(store, key_of(2), b"\x00\xff", key_of(1), b"x")
        assert [store.get(key) for key in store.list_keys()] == [b"x", b"\x00\xff"]

    def test_of_many_threads_exactly_one_wins_each_key(self, store: LogStore):
        threads, keys = 6, 12
        barrier = Barrier(threads)

        def put_all(me: int) -> list[int]:
            barrier.wait(30)
            return [n for n in range(keys) if store.put_if_absent(key_of(n), f"{me}:{n}".encode())]

        with ThreadPoolExecutor(threads) as pool:
            won = list(pool.map(put_all, range(threads)))
        assert sorted(n for mine in won for n in mine) == list(range(keys))
        for me, mine in enumerate(won):
            assert all(store.get(key_of(n)) == f"{me}:{n}".encode() for n in mine)

    def test_of_many_processes_exactly_one_wins_each_key(self, store: LogStore, url: str | None):
        if url is None:
            pytest.skip("lives inside one process")
        processes, keys = 3, 25
        source = Path(__file__).parents[1] / "src"
        running = [
            subprocess.Popen(
                [sys.executable, "-c", _PUTTER, url, str(me), str(keys)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(source)},
            )
            for me in range(processes)
        ]
        for process in running:  # all are up before any is let go
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        won = [[int(line) for line in process.communicate(timeout=60)[0].split()] for process in running]
        assert [process.returncode for process in running] == [0] * processes
        assert sorted(n for mine in won for n in mine) == list(range(keys))
        for me, mine in enumerate(won):
            assert all(store.get(key_of(n)) == f"{me}:{n}".encode() for n in mine)

    @pytest.mark.parametrize(("transactions", "partitions"), [(1_000, 1_000), (10_000, 0)])
    def test_a_decision_of_any_size_fits(self, store: LogStore, transactions: int, partitions: int):
        writer = LogWriter(store, "contract", quick())
        writer.start()
        named = committables(transactions, writer.view.log)
        given = EpochInput(query="q", start=offsets(partitions, 0), end=offsets(partitions, 10_000))
        writer.decide(0, named, sinks=["out"], epoch_input=given)
        newest = read(store).newest
        assert newest is not None
        assert (list(newest.committables), newest.input) == (named, given)
        writer.complete(0)
        assert read(store).completed == 0

    def test_a_writer_runs_on_it_and_the_next_one_fences_it(self, store: LogStore):
        old = LogWriter(store, "contract", quick())
        old.start()
        for epoch in range(3):
            old.decide(epoch, [], sinks=["a"], epoch_input=EpochInput(end=epoch))
            old.complete(epoch)
        assert len(store.list_keys()) == 2
        new = LogWriter(store, "contract", quick())
        assert new.start().decided == 2
        with pytest.raises(FencedError):
            old.decide(3, [], sinks=["a"], epoch_input=EpochInput())
        assert read(store).decided == 2


class ServerStoreContract(StoreContract):
    """And of a store in a server, which the fixture `store_server` can kill and start."""

    def test_an_entry_that_was_answered_survives_a_crash_of_the_server(self, store: LogStore, store_server: Any):
        writer = LogWriter(store, "contract", quick())
        writer.start()
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        store_server.kill()
        with pytest.raises(StoreError):
            store.put_if_absent(key_of(2), b"while it is down")
        store_server.start()
        assert read(store).decided == 0
        writer.complete(0)
        assert read(store).completed == 0
