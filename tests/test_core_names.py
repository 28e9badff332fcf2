from __future__ import annotations

import random
import string

import pytest

from onceward.core.contract.names import (
    AcceptedName,
    PooledName,
    Scope,
    TransactionName,
    check_pipeline_name,
    check_sink_name,
    file_name,
    parse_accepted_name,
    parse_file_name,
    parse_pooled_name,
    parse_transaction_name,
)
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import ConfigurationError

LETTERS = string.ascii_letters + string.digits + "._-"


def some_name(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, longest)))


def some_scope(rng: random.Random) -> Scope:
    return Scope(some_name(rng, 64), some_name(rng, 32), f"{rng.getrandbits(32):08x}")


def some_transaction(rng: random.Random) -> TransactionName:
    numbers = [rng.choice([0, 1, 9, 10, rng.getrandbits(31)]) for _ in range(4)]
    return TransactionName(some_scope(rng), *numbers, unique=f"{rng.getrandbits(32):08x}")


def test_names_are_read_back_as_they_were_built():
    rng = random.Random(1)
    for _ in range(500):
        name = some_transaction(rng)
        assert parse_transaction_name(str(name)) == name
        pooled = PooledName(name.scope, name.unique, rng.randint(0, 99), rng.choice([None, name.start]))
        assert parse_pooled_name(str(pooled)) == pooled
        accepted = AcceptedName(name.scope, name.unique)
        assert parse_accepted_name(str(accepted)) == accepted
        assert str(accepted).startswith(AcceptedName.head(name.scope))
        texts = [str(name), str(pooled), str(accepted)]
        parsers = (parse_transaction_name, parse_pooled_name, parse_accepted_name)
        assert [[parse(text) is not None for text in texts] for parse in parsers] == [
            [True, False, False],
            [False, True, False],
            [False, False, True],
        ]


def test_whatever_is_read_as_a_name_is_written_back_the_same():
    """No two texts are one name: a text that parses is the canonical one (invariant 9)."""
    rng = random.Random(2)
    alphabet = LETTERS + ":: \n٣²é/+"
    parsed = 0
    for _ in range(4000):
        name = some_transaction(rng)
        pooled = PooledName(name.scope, name.unique, rng.randint(0, 99), rng.choice([None, name.start]))
        text = list(str(rng.choice([name, pooled, AcceptedName(name.scope, name.unique)])))
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(text))
            text[place : place + rng.randint(0, 2)] = rng.choices(alphabet, k=rng.randint(0, 2))
        for parse in (parse_transaction_name, parse_pooled_name, parse_accepted_name):
            found = parse("".join(text))
            if found is not None:
                parsed += 1
                assert str(found) == "".join(text)
    assert parsed > 100


@pytest.mark.parametrize("other", ["orders-eu", "order", "orders.", "ORDERS", "orders1"])
def test_a_name_is_never_taken_for_one_whose_pipeline_only_begins_alike(other: str):
    mine = Scope("orders", "events", "0a0b0c0d")
    theirs = TransactionName(Scope(other, "events", "0a0b0c0d"), 0, 0, 0, 0, "0123abcd")
    found = parse_transaction_name(str(theirs))
    assert found is not None
    assert found.scope != mine


@pytest.mark.parametrize(
    "text",
    [
        "",
        "onceward:1:",
        "onceward:2:p:s:0a0b0c0d:0:0:0:0:0123abcd",
        "onceward:1:p:s:0a0b0c0d:0:0:0:0",
        "onceward:1:p:s:0a0b0c0d:0:0:0:0:0123abcd:",
        "onceward:1:p:s:0a0b0c0d:0:0:0:0:0123ABCD",
        "onceward:1:p:s:0a0b0c0d:0:0:0:0:xyz",
        "onceward:1:p:s:0a0b0c0d:00:0:0:0:0123abcd",
        "onceward:1:p:s:0a0b0c0d:-1:0:0:0:0123abcd",
        "onceward:1:p:s:0a0b0c0d:+1:0:0:0:0123abcd",
        "onceward:1:p:s:0a0b0c0d:٣:0:0:0:0123abcd",
        "onceward:1:p::0a0b0c0d:0:0:0:0:0123abcd",
        "onceward:1:p:s:LOG:0:0:0:0:0123abcd",
        " onceward:1:p:s:0a0b0c0d:0:0:0:0:0123abcd",
        "onceward:1:p:s:0a0b0c0d:0:0:0:0:0123abcd\n",
        "onceward:1:p:s:0a0b0c0d:-1:0123abcd:0",
        "onceward:1:p:s:0a0b0c0d:01:0123abcd:0",
        "onceward:1:p:s:0a0b0c0d::0123abcd:0",
        "onceward:1:p:s:0a0b0c0d:1:0123abcd:",
        "onceward:1:p:s:0a0b0c0d:1:0123abcd:00",
    ],
)
def test_anything_else_is_no_name(text: str):
    assert parse_transaction_name(text) is None
    assert parse_pooled_name(text) is None


def test_a_pooled_name_of_one_start_says_which_and_one_of_a_session_does_not():
    scope = Scope("orders", "events", "0a0b0c0d")
    assert str(PooledName(scope, "0123abcd", 4, 17)) == "onceward:1:orders:events:0a0b0c0d:17:0123abcd:4"
    assert str(PooledName(scope, "0123abcd", 4)) == "onceward:1:orders:events:0a0b0c0d:0123abcd:4"
    for name in (PooledName(scope, "01234567", 4, 17), PooledName(scope, "01234567", 4)):
        assert parse_pooled_name(str(name)) == name


def test_the_longest_pooled_name_has_249_bytes_at_most():
    scope = Scope("p" * 64, "s" * 32, "f" * 32)
    assert len(str(PooledName(scope, "f" * 32, 10**9, 10**12)).encode()) <= 249


def test_the_longest_name_fits_into_a_postgres_gid():
    scope = Scope("p" * 64, "s" * 32, "f" * 8)
    assert len(str(TransactionName(scope, 10**12, 10**9, 10**6, 10**3, "f" * 8)).encode()) <= 199


def test_a_file_name_is_read_back_and_fits_every_file_system():
    """Hadoop takes what precedes a colon for a scheme; Windows and SMB refuse it, and so do they these others."""
    rng = random.Random(3)
    for _ in range(500):
        name = some_transaction(rng)
        as_file = file_name(str(name))
        assert parse_file_name(as_file) == name
        assert not set(as_file) & set(":/\\*?\"<>|=,{}[]^%#'\0")
        assert as_file[0] not in "._"  # hidden from Spark, Hive and pyarrow
        assert as_file[-1] not in ". "  # Windows drops them
        assert parse_file_name(str(name)) is None
    longest = TransactionName(Scope("p" * 64, "s" * 32, "f" * 8), 10**12, 10**9, 10**6, 10**3, "f" * 8)
    assert len(file_name(str(longest)).encode()) <= 220  # of 255, with what a sink adds


@pytest.mark.parametrize("name", ["", "a b", "a:b", "é", "a\n", "a/b", "x" * 65, ".", ".."])
def test_a_bad_pipeline_name_is_refused_with_what_is_allowed(name: str):
    with pytest.raises(ConfigurationError, match="1 to 64 characters"):
        check_pipeline_name(name)


def test_a_sink_name_is_at_most_32_characters():
    assert check_sink_name("s" * 32) == "s" * 32
    for name in ("s" * 33, ".", ".."):
        with pytest.raises(ConfigurationError, match="1 to 32 characters"):
            check_sink_name(name)


def test_each_attempt_gets_a_name_of_its_own():
    context = WriteContext(pipeline="p", sink="s", log="0a0b0c0d", generation=3, epoch=4, subtask=5, attempt=6)
    names = {str(context.transaction_name()) for _ in range(100)}
    assert len(names) == 100
    parsed = parse_transaction_name(names.pop())
    assert parsed is not None
    assert (parsed.scope, parsed.start, parsed.epoch, parsed.subtask, parsed.attempt) == (context.scope, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("generation", "epoch", "free"),
    [(4, 9, True), (4, 0, True), (5, 6, True), (5, 7, True), (5, 8, False), (5, 9, False), (6, 0, False)],
)
def test_a_pooled_name_is_free_only_when_an_entry_proves_that_its_transaction_ended(
    generation: int, epoch: int, free: bool
):
    context = WriteContext(pipeline="p", sink="s", log="0a0b0c0d", generation=5, epoch=9, subtask=0, completed=7)
    assert context.may_reuse(generation, epoch) is free
