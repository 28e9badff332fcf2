"""Kafka's answers and faults: error codes, whether asking again may help, and this library's errors made of them."""

from __future__ import annotations

import time
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceward.core.contract.policy import Backoff
from onceward.core.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Code(IntEnum):
    """An error code that the commit protocol tells apart, by its name in Kafka's protocol guide.

    NO_ANSWER and TLS_FAILED are not Kafka's: the connection failed or the time was over, so that the request may or may
    not have been carried out; and one side does not trust the other.

    The table is not kafka-python's (`kafka.errors`): that costs half a second in each process that only reads, has old
    names (NOT_LEADER_FOR_PARTITION), and does not ask again where the commit protocol must (PASSING).
    """

    NO_ANSWER = -1000
    TLS_FAILED = -1001
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SASL_AUTHENTICATION_FAILED = 58
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105


PASSING: Final = frozenset(
    {
        Code.NO_ANSWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Look the coordinator up again and ask again: it moved, is loading, is down, or its answer got lost."""

FORBIDDEN: Final = frozenset(
    {
        Code.TLS_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_SASL_MECHANISM,
        Code.ILLEGAL_SASL_STATE,
        Code.UNSUPPORTED_VERSION,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
    }
)
"""Asking again will not help until somebody changes the set-up."""


def code_name(code: int) -> str:
    """Return the code as people look it up, for example `INVALID_TXN_STATE (48)`."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"error code {code}"


def other_protocol(own: str) -> str:
    """Return why a listener may close each connection without an answer; `own` is this client's security.protocol."""
    return f"A listener that expects another security.protocol than {own} closes connections like this"


def kafka_error(what: str, code: int, detail: str = "", **context: Any) -> KafkaError:
    """Return a KafkaError for a broker's error code; its `retryable` follows from the code."""
    words = f": {detail}" if detail else ""
    advice = ". Asking again does not help: check permissions and versions" if code in FORBIDDEN else ""
    error = KafkaError(f"{what}: {code_name(code)}{words}{advice}", **context)
    error.retryable = code in PASSING
    return error


_ADVICE: Final = {
    "INVALID_RECORD": ". A compacted topic (cleanup.policy=compact) takes no message without a key: give each row a "
    "key, or leave such rows out with where",
    "MSG_SIZE_TOO_LARGE": "",  # sizes.py says what limits it
    "_UNKNOWN_PARTITION": ". The topic has no such partition: look at the column partition",
}


def advice_on_refusal(name: str) -> str:
    """Return advice for an error of librdkafka's that refuses a message; empty if there is none."""
    return _ADVICE.get(name, "")


def refuses_message(name: str) -> bool:
    """Return whether this error of librdkafka's refuses a message, and not all of them."""
    return name in _ADVICE


def client_error(what: str, error: BaseException, **context: Any) -> KafkaError:
    """Return a KafkaError for a KafkaException of confluent-kafka, without its error object (it does not pickle)."""
    cause: Any = error.args[0] if error.args else error
    known = hasattr(cause, "retriable")
    words = f"{cause.str()} ({cause.name()}){advice_on_refusal(cause.name())}" if known else error
    raised = KafkaError(f"{what}: {words}", **context)
    raised.retryable = known and bool(cause.retriable())
    raised.refuses_rows = raised.refuses_alone = known and refuses_message(cause.name())
    return raised


class TimeoutTooLongError(KafkaError):
    """A broker does not allow a transaction to be open for as long as it was asked for."""


LEAST: Final = 0.05


class Retries:
    """Iterates over 0, 1, 2 … with exponential pauses and jitter in between, until time is over; at least once.

    Args:
        seconds: When to stop, counted from now.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end, never less than a twentieth."""
        return max(LEAST, self._deadline - time.monotonic())

    def __iter__(self) -> Iterator[int]:
        pauses = Backoff(first=0.0025, factor=1.6, most=0.6, sleep=time.sleep)
        for number in count():
            yield number
            if not pauses.pause(number, self._deadline - time.monotonic()):
                return


def until_answered(seconds: float, ask: Callable[[], T]) -> T:
    """Ask again, while the fault may pass, until `seconds` are over; at least once."""
    error: KafkaError | None = None
    for _ in Retries(seconds):
        try:
            return ask()
        except KafkaError as raised:
            if not raised.retryable:
                raise
            error = raised
    assert error is not None  # noqa: S101 - there is at least one try
    raise error
