"""What a coordinator's description proves: every answer falls into one row, and no row guesses."""

import itertools

import pytest

from onceward.connectors.kafka.claims import never_committed
from onceward.connectors.kafka.codes import PASSING, Code, code_name
from onceward.connectors.kafka.coordinator import Description
from onceward.connectors.kafka.handle import Handle, Prepared, listed_committable
from onceward.connectors.kafka.verdict import ABORT, COMMIT, STATE, Inside, Seen, judge, judge_partitions
from onceward.core.errors import LogDamagedError
from onceward.core.names import PooledName, Scope
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, ExternalState

MINE = Handle("id", 7, 3, 1000)
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


def seen(state, handle=MINE, code=Code.NONE):
    return judge(MINE, Description(code, state, handle))


def test_every_kind_of_evidence_has_one_meaning_in_each_table():
    assert set(COMMIT) == set(ABORT) == set(STATE) == set(Seen)


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
    assert [state for state in STATES if seen(state) is Seen.COMMITTED] == ["PrepareCommit", "CompleteCommit"]


def test_nothing_but_this_very_open_transaction_is_ever_sent_a_request():
    for state, handle in itertools.product(
        STATES, [NEXT, MINE._replace(started_ms=1001), MINE._replace(producer_id=8)]
    ):
        assert seen(state, handle) is not Seen.OPEN
    assert [state for state in STATES if seen(state) is Seen.OPEN] == ["Ongoing"]


def test_loss_is_proven_by_an_abort_with_the_same_start():
    assert seen("CompleteAbort") is Seen.ABORTED
    assert seen("CompleteAbort", NEXT) is Seen.OVERTHROWN
    assert COMMIT[Seen.OVERTHROWN] is COMMIT[Seen.ABORTED] is CommitStatus.LOST
    assert STATE[Seen.OVERTHROWN] is ExternalState.EXPIRED


def test_an_id_that_was_initialised_again_tells_nothing():
    for state in STATES:
        assert seen(state, NEXT._replace(started_ms=-1)) is Seen.REPLACED
    assert COMMIT[Seen.REPLACED] is CommitStatus.UNKNOWN
    assert ABORT[Seen.REPLACED] is AbortStatus.UNKNOWN


@pytest.mark.parametrize("code", [*sorted(PASSING), Code.UNKNOWN_SERVER_ERROR, 12345])
def test_no_answer_is_never_an_answer(code):
    assert seen("CompleteCommit", code=code) is Seen.NO_WORD
    assert COMMIT[Seen.NO_WORD] is CommitStatus.RETRY_LATER


def test_an_unknown_id_was_never_written_or_is_long_gone():
    description = Description(Code.TRANSACTIONAL_ID_NOT_FOUND)
    assert judge(MINE, description) is Seen.ABSENT
    assert ABORT[Seen.ABSENT] is AbortStatus.ABORTED
    assert COMMIT[Seen.ABSENT] is CommitStatus.UNKNOWN


@pytest.mark.parametrize(
    ("first", "second", "inside"),
    [
        ({(7, 3): -1, (8, 0): 0}, {(7, 3): 0}, Inside.OPEN),
        ({(7, 3): -1}, {(8, 0): 0}, Inside.MIXED),
        ({(7, 2): -1}, {}, Inside.ENDED),
        ({(7, 3): -1}, None, Inside.NO_WORD),
        ({}, None, Inside.NO_WORD),
    ],
)
def test_all_partitions_have_to_tell_before_anything_is_believed(first, second, inside):
    producers = {("t", 0): first, ("t", 1): second, ("other", 0): {}}
    assert judge_partitions(PREPARED, producers) is inside


def test_a_partition_that_was_not_asked_has_not_told():
    assert judge_partitions(PREPARED, {("t", 0): {(7, 3): -1}}) is Inside.NO_WORD


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


SCOPE = Scope("orders", "out", "0123abcd")


def committable(**fields):
    return Committable(kind="kafka", pipeline="p", sink="s", log="l", writer=0, epoch=0, transaction="id", **fields)


def test_a_handle_comes_back_from_its_committable_as_it_was():
    assert Prepared.of(committable(handle=PREPARED.to_json())) == PREPARED
    assert Prepared.of(committable()) is None


def test_the_same_transaction_always_makes_the_same_handle():
    turned = Prepared(MINE, frozenset({("t", 1), ("t", 0)}))
    assert committable(handle=turned.to_json()).identity() == committable(handle=PREPARED.to_json()).identity()


@pytest.mark.parametrize("wrong", [{"version": 2}, {"kind": "postgres-prepared"}])
def test_a_committable_of_another_kind_or_version_is_refused(wrong):
    fields = {"kind": "kafka", "version": 1, **wrong}
    strange = Committable(pipeline="p", sink="s", log="l", writer=0, epoch=0, transaction="id", **fields)
    with pytest.raises(LogDamagedError, match="version"):
        Prepared.of(strange)


@pytest.mark.parametrize(
    "scope",
    [Scope("orders-eu", "out", "0123abcd"), Scope("order", "out", "0123abcd"), Scope("orders", "out2", "0123abcd")],
)
def test_names_that_are_prefixes_of_each_other_are_not_confused(scope):
    name = str(PooledName(scope, "ffff", 0))
    assert listed_committable(named(name), SCOPE) is None


def test_another_logs_transaction_is_listed_with_its_own_log():
    name = str(PooledName(SCOPE._replace(log="9999"), "ffff", 0))
    listed = listed_committable(named(name), SCOPE)
    assert listed is not None
    assert listed.log == "9999"
    assert Prepared.of(listed) == named(name)


def named(name):
    return PREPARED._replace(handle=MINE._replace(transactional_id=name))
