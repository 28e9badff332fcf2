"""Faults of Kafka as this library's errors: with the code's name, and whether asking again may help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from onceward.core.errors import ConfigurationError, KafkaError

from .codes import FORBIDDEN, PASSING, code_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

T = TypeVar("T")
INSTALL = "Kafka's client libraries are needed: pip install 'onceward[kafka]'"


def kafka_error(what: str, code: int, detail: str = "", **context: Any) -> KafkaError:
    """A KafkaError for an answer of a broker.

    Args:
        what: What could not be done.
        code: The broker's code, or NO_ANSWER.
        detail: More words, if there are any.
        context: pipeline, sink, epoch, transaction, where known.
    """
    words = f": {detail}" if detail else ""
    advice = ". Asking again does not help: check permissions and versions" if code in FORBIDDEN else ""
    error = KafkaError(f"{what}: {code_name(code)}{words}{advice}", **context)
    error.retryable = code in PASSING
    return error


def client_error(what: str, error: BaseException, **context: Any) -> KafkaError:
    """A KafkaError for a KafkaException of confluent-kafka; keeps its code, drops the object (it does not pickle)."""
    cause = error.args[0] if error.args else error
    name, words = getattr(cause, "name", None), getattr(cause, "str", None)
    told = f"{words()} ({name()})" if name is not None and words is not None else str(error)
    raised = KafkaError(f"{what}: {told}", **context)
    retriable = getattr(cause, "retriable", None)
    raised.retryable = bool(retriable()) if retriable is not None else False
    return raised


def made(client: Callable[..., T], config: Mapping[str, Any], **more: Any) -> T:
    """A client of confluent-kafka.

    Args:
        client: Its class.
        config: Settings under librdkafka's names.
        more: Further arguments of the class.

    Raises:
        ConfigurationError: librdkafka refuses a setting; the message names it.
    """
    try:
        return client(config, **more)
    except confluent().KafkaException as error:
        if error.args[0].name() == "_CRIT_SYS_RESOURCE":
            raise client_error("cannot make a Kafka client", error) from None
        raise ConfigurationError(
            f"librdkafka refuses the Kafka settings: {error.args[0].str()}. docs/kafka-settings.md says which there are"
        ) from None


def confluent() -> ModuleType:
    """The module confluent_kafka.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra: sinks import without it
    except ImportError as error:
        raise ConfigurationError(INSTALL) from error
    return confluent_kafka
