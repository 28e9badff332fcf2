"""Whatever travels between Python processes comes out as it went in."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest

from onceward.core import errors
from onceward.core.contract.transaction import Acknowledgement, CommitOutcome, CommitStatus, Committable, WriteContext
from onceward.core.errors import LogDamagedError, OncewardError, StoreError, text_of
from onceward.core.log import WriterToken

from .entries_kit import COMMITTABLE

ALL_ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OncewardError)]
ACKNOWLEDGEMENT = Acknowledgement(epoch=5, subtask=1, attempt=2, sinks=("a",), committables=(COMMITTABLE,))


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_errors_keep_type_message_and_context(kind: type[OncewardError]):
    error = kind("went wrong", pipeline="p", sink="s", epoch=3, transaction="t")
    error.hint = "added by a subclass"  # type: ignore[attr-defined]
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert vars(back) == vars(error)
    assert str(back) == str(error) == "went wrong [pipeline p, sink s, epoch 3, transaction t]"
    assert back.args == ("went wrong",)


def test_an_error_without_a_text_of_its_own_is_told_by_its_class():
    """TimeoutError() and NotImplementedError() have none, and drivers raise them so."""
    assert text_of(TimeoutError()) == "TimeoutError"
    assert text_of(KeyError("a")) == "'a'"


def test_an_error_without_context_is_its_message():
    assert str(OncewardError("plain")) == "plain"
    assert str(OncewardError("plain", epoch=0)) == "plain [epoch 0]"


def test_a_subclass_with_its_own_constructor_pickles_too():
    back = pickle.loads(pickle.dumps(NumberError(42)))
    assert isinstance(back, NumberError)
    assert (back.number, str(back)) == (42, "number 42")


class NumberError(OncewardError):
    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number


def test_faults_of_the_world_and_broken_promises_are_two_branches():
    for kind in ALL_ERRORS:
        both = issubclass(kind, errors.ExternalError) and issubclass(kind, errors.ProtocolError)
        assert not both
    assert StoreError("x").retryable
    assert not LogDamagedError("x").retryable


@pytest.mark.parametrize(
    "value",
    [
        COMMITTABLE,
        ACKNOWLEDGEMENT,
        CommitOutcome(CommitStatus.LOST, "gone"),
        WriterToken("0a0b0c0d", "00", 3, 7),
        WriteContext(pipeline="p", sink="s", log="0a0b0c0d", generation=3, epoch=4, subtask=5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_survive_pickling_and_json(value: msgspec.Struct):
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_committables_and_acknowledgements_have_one_text_each():
    shuffled = msgspec.structs.replace(COMMITTABLE, handle=dict(reversed(COMMITTABLE.handle.items())))
    assert shuffled.to_json() == COMMITTABLE.to_json()
    assert shuffled.identity() == COMMITTABLE.identity()
    assert Committable.from_json(COMMITTABLE.to_json()) == COMMITTABLE
    assert Acknowledgement.from_json(ACKNOWLEDGEMENT.to_json()) == ACKNOWLEDGEMENT


def test_equal_committables_are_one_in_a_set():
    other = msgspec.structs.replace(COMMITTABLE, transaction="t2")
    assert {COMMITTABLE, Committable.from_json(COMMITTABLE.to_json()), other} == {COMMITTABLE, other}


@pytest.mark.parametrize("field", ["sink", "transaction", "handle"])
def test_another_sink_name_or_handle_is_another_transaction(field: str):
    other = {"sink": "b", "transaction": "t2", "handle": {"producer": 12, "epoch": 4}}[field]
    assert msgspec.structs.replace(COMMITTABLE, **{field: other}).identity() != COMMITTABLE.identity()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind":"kafka"}'])
def test_what_is_not_a_committable_is_refused(text: str):
    with pytest.raises(LogDamagedError, match="a committable cannot be read"):
        Committable.from_json(text)
