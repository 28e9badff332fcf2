"""The broker's answers that the commit protocol tells apart, by the names of Kafka's protocol guide."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """An error code of Kafka's protocol, or one of two that it does not have."""

    NO_ANSWER = -1000
    """The connection failed or the time was over: the request may or may not have been carried out."""
    TLS_FAILED = -1001
    """The TLS handshake failed: this side does not trust the broker, or the broker not this side."""
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
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
    """The code as people look it up, for example `INVALID_TXN_STATE (48)`."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"error code {code}"
