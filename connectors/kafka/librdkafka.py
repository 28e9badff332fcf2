"""A transactional producer and a consumer on librdkafka's C interface, which takes and gives whole arrays of messages.

confluent-kafka makes a Python call, an allocation and a delivery report of each message. librdkafka itself takes an
array (`rd_kafka_produce_batch`) and reports failures only (`delivery.report.only.error`), but no method of
confluent-kafka leads there: its `produce_batch` wants a dict for each message. Its consumer makes an object of each
message, of its key, its value and its timestamp. So these call the same library through ctypes.

Why that is safe:

1. It is the library that confluent-kafka has loaded, whatever its file is called: symbols are looked up in its
   extension module, and the versions must be equal.
2. Only what rdkafka.h declares is used, and its structures have not changed in the life of librdkafka.so.1. No field
   of an object of confluent-kafka is read. The one exception, a consumed message's timestamp, is compared with what the
   declared function says, and if it differs, the function is asked for each message.
3. librdkafka copies each message that is produced during the call, so no Arrow buffer has to outlive it. A message that
   was consumed is copied before it is given back.
4. Python functions are called only from within `poll`, `flush` and `consume`, never by a thread of librdkafka.
5. Where anything of this is not so (`usable`), confluent-kafka's clients do the work.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import weakref
from collections import deque
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import confluent_kafka

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

_PRODUCER: Final = 0
_CONSUMER: Final = 1
COPY: Final = 2
"""RD_KAFKA_MSG_F_COPY."""
QUEUE_FULL: Final = -184
_INVALID_ARGUMENT: Final = -186
_TEXT_BYTES: Final = 512
FIRST_LOOK: Final = 0.001
LOOKS_GROW: Final = 1.25
LAST_LOOK: Final = 0.004
"""How soon `flush` looks whether all is acknowledged, how the time to the next look grows, and to how much; seconds."""
_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of `logging` for those of syslog."""


class Message(Structure):
    """rd_kafka_message_t; addresses are numbers, so that numpy can fill them in."""

    _fields_ = (
        ("err", c_int32),
        ("rkt", c_size_t),
        ("partition", c_int32),
        ("payload", c_size_t),
        ("len", c_size_t),
        ("key", c_size_t),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_size_t),
    )


class Consumed(Structure):
    """The memory layout around a consumed message. Only `message` is declared by rdkafka.h: check the rest first."""

    _fields_ = (
        ("message", Message),
        ("link", c_size_t * 2),
        ("flags", c_int32),
        ("time_kind", c_int32),
        ("time", c_int64),
    )


class Argument(Structure):
    """rd_kafka_vu_t, one tagged argument of rd_kafka_produceva: its union as words."""

    _fields_ = (("vtype", c_int32), ("one", c_size_t), ("two", c_size_t), ("three", c_size_t), ("rest", c_size_t * 5))


_ON_DELIVERY = CFUNCTYPE(None, c_void_p, POINTER(Message), c_void_p)
_ON_LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)
_ON_ERROR = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_IGNORED: Final = _ON_ERROR(lambda *_: None)
"""A client's errors are for information, and in its log, but for fatal ones: those are asked for."""

_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {  # result, arguments
    "version": (c_int,),
    "conf_new": (c_void_p,),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "conf_set_dr_msg_cb": (None, c_void_p, _ON_DELIVERY),
    "conf_set_log_cb": (None, c_void_p, _ON_LOG),
    "conf_set_error_cb": (None, c_void_p, _ON_ERROR),
    "conf_destroy": (None, c_void_p),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "last_error": (c_int,),
    "set_log_queue": (c_int, c_void_p, c_void_p),
    "name": (c_char_p, c_void_p),
    "destroy": (None, c_void_p),
    "topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "topic_name": (c_char_p, c_void_p),
    "topic_destroy": (None, c_void_p),
    "produce_batch": (c_int, c_void_p, c_int32, c_int, c_void_p, c_int),
    "produceva": (c_void_p, c_void_p, c_void_p, c_size_t),
    "poll": (c_int, c_void_p, c_int),
    "flush": (c_int, c_void_p, c_int),
    "outq_len": (c_int, c_void_p),
    "purge": (c_int, c_void_p, c_int),
    "init_transactions": (c_void_p, c_void_p, c_int),
    "begin_transaction": (c_void_p, c_void_p),
    "abort_transaction": (c_void_p, c_void_p, c_int),
    "fatal_error": (c_int, c_void_p, c_char_p, c_size_t),
    "error_code": (c_int, c_void_p),
    "error_string": (c_char_p, c_void_p),
    "error_is_fatal": (c_int, c_void_p),
    "error_is_retriable": (c_int, c_void_p),
    "error_destroy": (None, c_void_p),
    "poll_set_consumer": (c_int, c_void_p),
    "queue_get_consumer": (c_void_p, c_void_p),
    "queue_destroy": (None, c_void_p),
    "topic_partition_list_new": (c_void_p, c_int),
    "topic_partition_list_add": (c_void_p, c_void_p, c_char_p, c_int32),
    "topic_partition_list_set_offset": (c_int, c_void_p, c_char_p, c_int32, c_int64),
    "topic_partition_list_destroy": (None, c_void_p),
    "assign": (c_int, c_void_p, c_void_p),
    "consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "message_errstr": (c_char_p, c_void_p),
}
_SHORT: Final[dict[str, tuple[Any, ...]]] = {
    "message_timestamp": (c_int64, c_size_t, c_size_t),
    "message_destroy": (None, c_size_t),
}
"""Functions that are called for each message: they wait for nothing, so they keep Python's lock, which is faster."""


class _Library:
    """The functions that are needed, without `rd_kafka_` in front."""

    def __init__(self, file: str) -> None:
        for library, functions in ((ctypes.CDLL(file), _FUNCTIONS), (ctypes.PyDLL(file), _SHORT)):
            for name, (result, *arguments) in functions.items():
                function = getattr(library, f"rd_kafka_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


@cache
def library() -> _Library | None:
    """Return the library that confluent-kafka has loaded; None if it cannot be reached, or has an unexpected layout."""
    if ctypes.sizeof(c_void_p) != ctypes.sizeof(ctypes.c_uint64) or sys.byteorder != "little":
        return None
    try:
        handle = _Library(confluent_kafka.cimpl.__file__)
    except (OSError, AttributeError):  # linked statically, or on Windows
        return None
    return handle if handle.version() == confluent_kafka.libversion()[1] else None


def usable(config: Mapping[str, Any]) -> bool:
    """Return whether these clients support the settings: they take neither the user's functions nor plug-ins."""
    special = any(callable(value) for value in config.values()) or "plugin.library.paths" in config
    return not special and library() is not None


class BatchProducer:
    """A confluent_kafka.Producer as TransactionalProducer needs it, with `produce_batch`. Not shared between threads.

    Args:
        config: librdkafka's settings, all of them text or numbers.
        on_failure: Called by `poll` and `flush` for a message that was not delivered: with a KafkaError, its topic,
            its partition (-1: none), and the bytes of its key and value.
        logger: Gets what librdkafka logs.

    Raises:
        confluent_kafka.KafkaException: librdkafka refuses a setting; so do all methods if librdkafka reports an error.
    """

    def __init__(
        self, config: Mapping[str, Any], on_failure: Callable[[Any, str, int, int], None], logger: logging.Logger
    ) -> None:
        self._library = lib = cast("_Library", library())  # it is: see usable
        callbacks = _ON_DELIVERY(_reporter(lib, on_failure)), _ON_LOG(_log_writer(lib, logger))
        self._handle = _new(lib, _PRODUCER, config, *callbacks)
        self._topics: dict[str, int] = {}
        end = weakref.finalize(self, _destroy, lib, self._handle, self._topics, os.getpid(), callbacks)
        end.atexit = False  # a forked child would wait for threads that it does not have

    def init_transactions(self, seconds: float) -> None:
        """Raise the transactional id's producer epoch."""
        self._raise_if(self._library.init_transactions(self._handle, _milliseconds(seconds)))

    def begin_transaction(self) -> None:
        """Open the transaction."""
        self._raise_if(self._library.begin_transaction(self._handle))

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction."""
        self._raise_if(self._library.abort_transaction(self._handle, _milliseconds(seconds)))

    def purge(self) -> None:
        """Drop all messages, those on their way included."""
        self._library.purge(self._handle, 1 | 2)

    def poll(self, seconds: float) -> int:
        """Call back for failures; how many events there were."""
        events: int = self._library.poll(self._handle, _milliseconds(seconds))
        self._raise_if_fatal()
        return events

    def flush(self, seconds: float) -> int:
        """Wait for acknowledgements; how many messages still wait for one.

        Nothing wakes librdkafka's flush if only failures are reported: it looks every 10 ms whether messages are left.
        So it is called again and again with a shorter time.
        """
        end, step = time.monotonic() + seconds, FIRST_LOOK
        while True:
            self._library.flush(self._handle, _milliseconds(max(0.0, min(step, end - time.monotonic()))))
            self._raise_if_fatal()
            left: int = self._library.outq_len(self._handle)
            if not left or time.monotonic() >= end:
                return left
            step = min(LAST_LOOK, step * LOOKS_GROW)

    def __len__(self) -> int:
        """Return how many messages wait to be sent or acknowledged."""
        left: int = self._library.outq_len(self._handle)
        return left

    def produce_batch(self, topic: str, partition: int, messages: npt.NDArray[np.void]) -> int:
        """Hand over messages for one topic, in order; return how many were taken before the queue was full.

        Args:
            topic: Name of the topic.
            partition: Number of the partition, or -1 for the partitioner.
            messages: Array of `Message`; their `err` is changed.
        """
        taken: int = self._library.produce_batch(
            self._topic(topic), partition, COPY, messages.ctypes.data, len(messages)
        )
        if taken < len(messages):
            codes = messages["err"]
            for code in codes[(codes != 0) & (codes != QUEUE_FULL)][:1]:
                self._raise_if_fatal()
                raise _exception(int(code))
        return taken

    def produce(self, arguments: int, count: int) -> bool:
        """Hand over one message, `count` tagged arguments at this address; return False if the queue is full."""
        error = self._library.produceva(self._handle, arguments, count)
        if error and self._library.error_code(error) == QUEUE_FULL:
            self._library.error_destroy(error)
            return False
        self._raise_if(error)
        return True

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            topic = self._library.topic_new(self._handle, name.encode(), None)
            if not topic:
                raise _exception(self._library.last_error())
            self._topics[name] = topic
        return self._topics[name]

    def _raise_if(self, error: int | None) -> None:
        if not error:
            return
        library = self._library
        try:
            raise _exception(
                library.error_code(error),
                library.error_string(error).decode(errors="replace"),
                fatal=bool(library.error_is_fatal(error)),
                retriable=bool(library.error_is_retriable(error)),
            )
        finally:
            library.error_destroy(error)

    def _raise_if_fatal(self) -> None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.fatal_error(self._handle, text, len(text))
        if code:
            raise _exception(code, text.value.decode(errors="replace"), fatal=True)


class BatchConsumer:
    """A consumer that is assigned one partition at a time and gives arrays of messages. Not shared between threads.

    Args:
        config: librdkafka's settings, all of them text or numbers.
        logger: Gets what librdkafka logs.

    Raises:
        confluent_kafka.KafkaException: librdkafka refuses a setting or the assignment.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger) -> None:
        self._library = lib = cast("_Library", library())  # it is: see usable
        on_log = _ON_LOG(_log_writer(lib, logger))
        self._handle = _new(lib, _CONSUMER, config, None, on_log)
        lib.poll_set_consumer(self._handle)
        self._queue = lib.queue_get_consumer(self._handle)
        self._close = weakref.finalize(self, _close, lib, self._handle, self._queue, os.getpid(), on_log)
        self._close.atexit = False  # a forked child would wait for threads that it does not have

    def read_from(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from this offset on, and no other."""
        library, name = self._library, topic.encode()
        chosen = library.topic_partition_list_new(1)
        try:
            library.topic_partition_list_add(chosen, name, partition)
            library.topic_partition_list_set_offset(chosen, name, partition, offset)
            code = library.assign(self._handle, chosen)
        finally:
            library.topic_partition_list_destroy(chosen)
        if code:
            raise _exception(code)

    def unassign(self) -> None:
        """Stop fetching."""
        self._library.assign(self._handle, None)

    def consume(self, addresses: npt.NDArray[np.uint64], seconds: float) -> int:
        """Take messages and events, until the array is full or the time is over; how many there are.

        Args:
            addresses: Gets the addresses of `rd_kafka_message_t`. Each must be given to `destroy`.
            seconds: 0 takes what is there.
        """
        wait = _milliseconds(seconds)
        count: int = self._library.consume_batch_queue(self._queue, wait, addresses.ctypes.data, len(addresses))
        return max(count, 0)

    def time(self, address: int) -> tuple[int, int]:
        """Return a message's timestamp in milliseconds, and its kind (rd_kafka_timestamp_type_t)."""
        kind = c_int32()
        return self._library.message_timestamp(address, ctypes.addressof(kind)), kind.value

    def error(self, address: int, code: int) -> Any:
        """Return the error of an event with this error code, as a confluent_kafka.KafkaError."""
        text = self._library.message_errstr(address)
        return confluent_kafka.KafkaError(code, text.decode(errors="replace") if text else None)

    def topic_name(self, topic: int) -> str | None:
        """Return the name of a message's topic; None for an event of the whole client."""
        return self._library.topic_name(topic).decode() if topic else None

    def destroy(self, addresses: list[int]) -> None:
        """Free messages and events."""
        deque(map(self._library.message_destroy, addresses), maxlen=0)

    def close(self) -> None:
        """Close the connections."""
        self._close()


def _new(library: _Library, kind: int, config: Mapping[str, Any], on_delivery: Any, on_log: Any) -> int:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = library.conf_new()
    for name, value in {**config, "log.queue": True}.items():
        setting = str(value).lower() if isinstance(value, bool) else str(value)
        if library.conf_set(conf, name.encode(), setting.encode(), text, len(text)):
            library.conf_destroy(conf)
            raise _exception(_INVALID_ARGUMENT, text.value.decode(errors="replace"))
    if on_delivery is not None:  # a producer
        library.conf_set_dr_msg_cb(conf, on_delivery)
        library.conf_set_error_cb(conf, _IGNORED)
    library.conf_set_log_cb(conf, on_log)
    handle: int | None = library.new(kind, conf, text, len(text))
    if not handle:  # else `conf` is its own
        library.conf_destroy(conf)
        raise _exception(library.last_error(), text.value.decode(errors="replace"))
    library.set_log_queue(handle, None)
    return handle


def _destroy(library: _Library, handle: int, topics: dict[str, int], process: int, _callbacks: Any) -> None:
    if process != os.getpid():
        return
    for topic in topics.values():
        library.topic_destroy(topic)
    library.destroy(handle)


def _close(library: _Library, handle: int, queue: int, process: int, _callback: Any) -> None:
    if process == os.getpid():
        library.queue_destroy(queue)
        library.destroy(handle)


def _reporter(library: _Library, on_failure: Callable[[Any, str, int, int], None]) -> Callable[..., None]:
    def report(_handle: int, message: Any, _opaque: int) -> None:
        record = message.contents
        if record.err:
            name = library.topic_name(record.rkt).decode()
            on_failure(confluent_kafka.KafkaError(record.err), name, record.partition, record.len + record.key_len)

    return report


def _log_writer(library: _Library, logger: logging.Logger) -> Callable[..., None]:
    def write(handle: int, level: int, facility: bytes, text: bytes) -> None:
        words = (facility, library.name(handle), text)
        logger.log(_LEVELS[level], "%s [%s] %s", *(word.decode(errors="replace") for word in words))

    return write


def _exception(code: int, text: str | None = None, **kind: bool) -> Exception:
    exception: Exception = confluent_kafka.KafkaException(confluent_kafka.KafkaError(code, text, **kind))
    return exception


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
