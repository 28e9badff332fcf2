"""Barriers in a gate: aligned (exactly-once) and counted (at-least-once). SCENARIOS 57, 58."""

from __future__ import annotations

import pyarrow as pa

from onceward.core.engine.channels import Aligned, Barrier, Cancel, Channel, End

from .engine_kit import batch, drain, feed, gate


def test_57_rows_behind_a_barrier_wait_until_it_arrived_everywhere_and_rows_elsewhere_go_on():
    g = gate(2)
    feed(g, 0, Barrier(1), 10, 11)
    feed(g, 1, 20, 21)
    assert drain(g) == [20, 21]
    assert g.is_blocked(0)
    feed(g, 1, Barrier(1), 22)
    rest = drain(g)
    assert rest[0] == "barrier 1"
    assert sorted(map(str, rest[1:])) == ["10", "11", "22"]


def test_57_the_order_within_a_channel_is_kept():
    g = gate(2)
    feed(g, 0, 1, 2, Barrier(1), 3, 4)
    feed(g, 1, Barrier(1))
    found = [n for n in drain(g) if isinstance(n, int)]
    assert found == [1, 2, 3, 4]


def test_57_what_waits_behind_a_barrier_is_bounded_by_its_channel():
    g = gate(2, capacity=3)
    feed(g, 0, Barrier(1))
    assert drain(g) == []
    feed(g, 0, 1, 2, 3)
    assert not g.channels[0].offer(batch(4))
    feed(g, 1, Barrier(1))
    event = g.poll()
    assert isinstance(event, Aligned)
    assert event.buffered == 3 * batch(1).nbytes


def test_a_channel_is_bounded_in_bytes_and_takes_a_batch_of_any_size_alone():
    rows = pa.RecordBatch.from_pydict({"n": [0] * 100})
    channel = Channel(8, most_bytes=2 * rows.nbytes)
    woken: list[int] = []
    channel.wake_writer = lambda: woken.append(1)
    assert [channel.offer(rows) for _ in range(3)] == [True, True, False]
    assert channel.offer(Barrier(1))  # it has no bytes, and the reader waits for it
    assert not woken
    assert channel.take() is rows
    assert woken
    assert channel.buffered_bytes == rows.nbytes
    assert channel.offer(rows)
    narrow = Channel(8, most_bytes=1)
    assert narrow.offer(rows)
    assert not narrow.offer(rows)
    assert narrow.take() is rows
    assert narrow.offer(rows)


def test_57_a_single_channel_needs_no_alignment():
    g = gate(1)
    feed(g, 0, 1, Barrier(1), 2)
    assert drain(g) == [1, "barrier 1", 2]


def test_57_a_newer_barrier_cancels_the_alignment_of_an_older_one():
    g = gate(3)
    feed(g, 0, Barrier(1), 10)
    feed(g, 1, Barrier(2), 20)
    assert [found for found in drain(g) if found != "cancel 1"] == [10]  # it may not even have begun
    assert not g.is_blocked(0)
    assert g.is_blocked(1)
    feed(g, 0, Barrier(2))
    feed(g, 2, Barrier(1), Barrier(2))  # the older one comes late, and is ignored
    assert drain(g) == ["barrier 2", 20]


def test_57_a_closed_channel_counts_as_one_whose_barrier_has_arrived():
    g = gate(2)
    feed(g, 0, Barrier(1), 10)
    feed(g, 1, 20, End())
    assert drain(g) == [20, "barrier 1", 10]
    feed(g, 0, Barrier(2), End())
    assert drain(g) == ["barrier 2", "end"]


def test_57_a_cancel_marker_ends_the_alignment_and_its_barriers_are_passed_over():
    g = gate(2)
    feed(g, 0, Barrier(1), 10)
    feed(g, 1, Cancel(1), 20)
    assert sorted(map(str, drain(g))) == ["10", "20", "cancel 1"]
    feed(g, 1, Barrier(1), 21)
    assert drain(g) == [21]


def test_57_a_checkpoint_that_was_given_up_blocks_nobody():
    g = gate(2)
    feed(g, 0, Barrier(1), 10)
    assert drain(g) == []
    g.give_up(1)
    assert drain(g) == [10]
    feed(g, 1, Barrier(1), 20)
    assert drain(g) == [20]


def test_58_at_least_once_never_blocks_a_channel():
    g = gate(2, aligned=False)
    feed(g, 0, Barrier(1), 10, Barrier(2), 11)
    assert drain(g) == [10, 11]
    feed(g, 1, Barrier(1), 20, Barrier(2))
    assert drain(g) == ["barrier 1", 20, "barrier 2"]


def test_58_a_newer_one_that_is_complete_first_ends_the_older_ones():
    g = gate(2, aligned=False)
    feed(g, 0, Barrier(1), Barrier(2))
    feed(g, 1, Barrier(2))
    assert drain(g) == ["barrier 2"]
    feed(g, 1, Barrier(1), 10)
    assert drain(g) == [10]
