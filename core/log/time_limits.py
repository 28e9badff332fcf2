"""Calls of a shared store that end in time, whatever its server, its network or its file system does.

Drivers know only some of the ways in which an answer can stay away: a stopped backend keeps its connection open, and so
does a network that drops packets. So a call runs in a thread of its own, which is left behind when the time is over. As
after any error, the put may have happened, or may land later.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Protocol, TypeVar

from ..errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="_Store")

ANSWER_SECONDS: Final = 60.0
"""Seconds that a call may take; as `answer_within` of the database sinks."""


class _Store(Protocol):
    def describe(self) -> str: ...

    @property
    def shared(self) -> bool: ...


def bounded(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Have a store's method end after ANSWER_SECONDS, with a StoreError, if other machines see the store."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not self.shared:
            return method(self, *args, **kwargs)
        return in_time(functools.partial(method, self, *args, **kwargs), self.describe())

    return call


def in_time(call: Callable[[], T], where: str) -> T:
    """Make a call, and raise a StoreError if it does not end in time."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            answer.set_exception(error)

    # Not a pool of threads: the interpreter waits for those when it ends.
    Thread(target=copy_context().run, args=(work,), name="onceward-store", daemon=True).start()
    try:
        return answer.result(ANSWER_SECONDS)
    except TimeoutError as error:
        if answer.done():  # the call's own
            raise
        raise StoreError(f"{where} has not answered for {ANSWER_SECONDS:g} s") from error
