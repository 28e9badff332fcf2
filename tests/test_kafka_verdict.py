"""What a coordinator's description proves: every answer falls into one row, and no row guesses."""

import itertools
from types import SimpleNamespace

import pytest

from onceward.connectors.kafka.error_codes import PASSING, Code, code_name
from onceward.connectors.kafka.ownership import never_committed
from onceward.connectors.kafka.transaction_state import (
    WORDS,
    Description,
    Handle,
    Inside,
    Prepared,
    judge,
    judge_partitions,
    listed_committable,
    open_producers,
)
from onceward.core.contract.names import PooledName, Scope
from onceward.core.contract.outcome import OUTCOMES
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation
from onceward.core.errors import LogDamagedError

SCOPE = Scope("orders", "out", "0123abcd")
MINE = Handle(str(PooledName(SCOPE, "ffff", 0)), 7, 3, 1000)
PREPARED = Prepared(MINE, frozenset({("t", 0), ("t", 1)}))
STATES = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
    "SomethingNew",
]
NEXT = MINE._replace(producer_epoch=4)
COMMIT = {seen: outcomes[0] for seen, outcomes in OUTCOMES.items()}
ABORT = {seen: outcomes[1] for seen, outcomes in OUTCOMES.items()}


def seen(state, handle=MINE, code=Code.NONE):
    return judge(MINE, Description(code, state, handle))


def test_there_are_words_for_every_answer():
    answers = {
        judge(MINE, Description(code, state, handle))
        for code, state, handle in itertools.product(
            [Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND, Code.NO_ANSWER], STATES, [MINE, NEXT, None]
        )
    }
    assert answers == WORDS.keys()


def test_a_commit_is_believed_only_if_this_very_transaction_is_shown_committed():
    others = [
        MINE._replace(producer_epoch=4),
        MINE._replace(producer_epoch=2),
        MINE._replace(producer_id=8),
        MINE._replace(started_ms=1001),
        MINE._replace(started_ms=-1),
    ]
    for state, handle in itertools.product(STATES, others):
        assert COMMIT[seen(state, handle)] is not CommitStatus.ALREADY_COMMITTED
        assert ABORT[seen(state, handle)] is not AbortStatus.COMMITTED
    assert [state for state in STATES if seen(state) is Observation.COMMITTED] == ["PrepareCommit", "CompleteCommit"]


def test_nothing_but_this_very_open_transaction_is_ever_sent_a_request():
    for state, handle in itertools.product(
        STATES, [NEXT, MINE._replace(started_ms=1001), MINE._replace(producer_id=8)]
    ):
        assert seen(state, handle) is not Observation.PREPARED
    assert [state for state in STATES if seen(state) is Observation.PREPARED] == ["Ongoing"]


def test_loss_is_proven_by_an_abort_with_the_same_start():
    assert seen("CompleteAbort") is Observation.ABORTED
    assert seen("CompleteAbort", NEXT) is Observation.EXPIRED
    assert COMMIT[Observation.EXPIRED] is COMMIT[Observation.ABORTED] is CommitStatus.LOST


def test_a_raised_epoch_is_an_abort_only_if_the_coordinator_says_that_it_aborted():
    """A coordinator may raise the epoch at a commit, too (KIP-890)."""
    aborts = {state for state in STATES if seen(state, NEXT) is Observation.EXPIRED}
    assert aborts == {"PrepareAbort", "CompleteAbort"}
    assert all(seen(state, NEXT) is Observation.UNKNOWN for state in set(STATES) - aborts - {"PrepareEpochFence"})


def test_23_a_state_that_only_the_coordinators_memory_has_proves_nothing():
    """PrepareEpochFence precedes the entry that aborts: a coordinator that is deposed then never writes it."""
    assert seen("PrepareEpochFence") is seen("PrepareEpochFence", NEXT) is Observation.NO_ANSWER


def test_an_id_that_was_initialised_again_tells_nothing():
    for state in STATES:
        assert seen(state, NEXT._replace(started_ms=-1)) is Observation.UNKNOWN
    assert COMMIT[Observation.UNKNOWN] is CommitStatus.UNKNOWN
    assert ABORT[Observation.UNKNOWN] is AbortStatus.UNKNOWN


@pytest.mark.parametrize("code", [*sorted(PASSING), Code.UNKNOWN_SERVER_ERROR, 12345])
def test_no_answer_is_never_an_answer(code):
    assert seen("CompleteCommit", code=code) is Observation.NO_ANSWER
    assert COMMIT[Observation.NO_ANSWER] is CommitStatus.RETRY_LATER


def test_an_unknown_id_was_never_written_or_is_long_gone():
    description = Description(Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert judge(MINE, description) is Observation.ABSENT
    assert ABORT[Observation.ABSENT] is AbortStatus.ABORTED
    assert COMMIT[Observation.ABSENT] is CommitStatus.UNKNOWN


def test_a_partition_tells_of_the_transactions_that_are_open_in_it():
    def producer(number, offset):
        return SimpleNamespace(
            producer_id=number, producer_epoch=3, coordinator_epoch=5, current_txn_start_offset=offset
        )

    def partition(number, *producers, code=Code.NONE):
        return SimpleNamespace(partition_index=number, error_code=code, active_producers=producers)

    partitions = [
        partition(0, producer(7, 0), producer(8, 41), producer(9, -1)),
        partition(1),
        partition(2, code=Code.NOT_LEADER_OR_FOLLOWER),
    ]
    response = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=partitions)])
    assert open_producers(response) == {("t", 0): {(7, 3): 5, (8, 3): 5}, ("t", 1): {}}


@pytest.mark.parametrize(
    ("first", "second", "inside"),
    [
        ({(7, 3): -1, (8, 0): 0}, {(7, 3): 0}, Inside.OPEN),
        ({(7, 3): -1}, {(8, 0): 0}, Inside.MIXED),
        ({(7, 2): -1}, {}, Inside.ENDED),
        ({(7, 3): -1}, None, Inside.SILENT),
        (None, None, Inside.SILENT),
        ({}, None, Inside.NO_WORD),
    ],
)
def test_all_partitions_have_to_tell_before_anything_is_believed(first, second, inside):
    producers = {("t", 0): first, ("t", 1): second, ("other", 0): {}}
    assert judge_partitions(PREPARED, producers) is inside


def test_a_partition_that_was_not_asked_has_not_told():
    assert judge_partitions(PREPARED, {("t", 0): {(7, 3): -1}}) is Inside.SILENT


@pytest.mark.parametrize(
    ("told", "inside"),
    [({("t", 0): {(7, 3): -1}}, Inside.OPEN), ({("t", 0): {}}, Inside.ENDED), ({("t", 0): None}, Inside.SILENT)],
)
def test_partitions_of_a_deleted_topic_do_not_count(told, inside):
    both = Prepared(MINE, frozenset({("t", 0), ("u", 0), ("u", 1)}))
    assert judge_partitions(both, told, {"u"}) is inside
    assert judge_partitions(both, told, {"t", "u"}) is Inside.GONE


@pytest.mark.parametrize(
    ("epoch", "state", "harmless"),
    [
        (0, "Empty", True),
        (0, "Ongoing", True),
        (0, "CompleteAbort", True),
        (1, "CompleteAbort", True),
        (0, "CompleteCommit", False),
        (0, "PrepareCommit", False),
        (1, "Empty", False),
        (1, "Ongoing", False),
        (2, "CompleteAbort", False),
    ],
)
def test_an_id_at_its_first_producer_epoch_has_committed_nothing(epoch, state, harmless):
    assert never_committed(Description(0, state, Handle("id", 1, epoch, -1))) is harmless


def test_codes_are_shown_by_name():
    assert code_name(90) == "PRODUCER_FENCED (90)"
    assert code_name(12345) == "error code 12345"


def committable(**fields):
    given = {**SCOPE._asdict(), "transaction": MINE.transactional_id, **fields}
    return Committable(kind="kafka", generation=0, epoch=0, **given)


def test_a_handle_comes_back_from_its_committable_as_it_was():
    assert Prepared.of(committable(handle=PREPARED.to_json())) == PREPARED
    assert Prepared.of(committable()) is None
    with pytest.raises(LogDamagedError, match="cannot be read"):
        Prepared.of(committable(rows=1))


@pytest.mark.parametrize(
    "altered",
    [
        {"pipeline": "q"},
        {"sink": "t"},
        {"log": "4567cdef"},
        {"transaction": "id"},
        {"transaction": str(PooledName(SCOPE._replace(sink="other"), "ffff", 0))},
    ],
)
def test_a_transactional_id_of_another_sink_is_refused(altered):
    with pytest.raises(LogDamagedError, match="is not a transactional id of this sink"):
        Prepared.of(committable(handle=PREPARED.to_json(), **altered))


def test_the_same_transaction_always_makes_the_same_handle():
    turned = Prepared(MINE, frozenset({("t", 1), ("t", 0)}))
    assert committable(handle=turned.to_json()).identity() == committable(handle=PREPARED.to_json()).identity()


@pytest.mark.parametrize("wrong", [{"version": 2}, {"kind": "postgres-prepared"}])
def test_a_committable_of_another_kind_or_version_is_refused(wrong):
    fields = {"kind": "kafka", "version": 1, **wrong}
    strange = Committable(pipeline="p", sink="s", log="l", generation=0, epoch=0, transaction="id", **fields)
    with pytest.raises(LogDamagedError, match="version"):
        Prepared.of(strange)


def test_a_listed_transaction_says_whose_it_is():
    scope = SCOPE._replace(log="9999")
    prepared = PREPARED._replace(handle=MINE._replace(transactional_id=str(PooledName(scope, "ffff", 0))))
    listed = listed_committable(prepared)
    assert listed is not None
    assert (listed.pipeline, listed.sink, listed.log) == scope
    assert Prepared.of(listed) == prepared


@pytest.mark.parametrize("name", ["id", "onceward:1:orders:out", "onceward:2:orders:out:0123abcd:ffff:0"])
def test_other_programs_transactions_are_not_listed(name):
    assert listed_committable(PREPARED._replace(handle=MINE._replace(transactional_id=name))) is None
