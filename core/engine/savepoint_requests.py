"""Savepoints by command: a request in the store of the decision log, which the running pipeline looks for.

A request is addressed to a START, so that no later run finds what was asked of this one. The run takes it out of the
store before it acts, hence acts once, and puts its answer beside it.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import CheckpointFailedError, ConfigurationError, LogDamagedError, OncewardError, StoreError
from ..kit.sealed import decode_json
from ..log import read
from ..log.entries import key_of
from .channels import CheckpointKind
from .reference import Decided

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..log import LogStore

POLL_SECONDS: Final = 1.0
"""Seconds between two looks of a run for a request."""
_LOOK_SECONDS: Final = 0.2
"""Seconds between two looks of the command for the answer."""
_REQUEST, _ANSWER = "Q", "A"


class Request(msgspec.Struct, frozen=True):
    """A command's request to a run. JSON-serialisable."""

    id: str
    kind: str
    """Name of a CheckpointKind."""
    target: str
    """Location of the savepoint."""


class RequestAnswer(msgspec.Struct, frozen=True):
    """The answer to a request. JSON-serialisable."""

    id: str
    made: str = ""
    error: str = ""


def _key(kind: str, start: int) -> str:
    return kind + key_of(start)[1:]


def send_savepoint_request(store: LogStore, kind: CheckpointKind, target: str, *, timeout: float) -> str:
    """Ask the run that uses this log for a savepoint, and wait for it; where it is.

    Args:
        store: Store of the pipeline's decision log.
        kind: SAVEPOINT, SUSPEND or DRAIN.
        target: Location of an empty or new folder, as the run's machine sees it.
        timeout: Seconds to wait.

    Raises:
        ConfigurationError: The log is not one of the embedded engine.
        CheckpointFailedError: It was not made, or not in time.
        StoreError: The store did not answer.
    """
    view = read(store)
    if Decided.of(view.newest) is None:
        raise ConfigurationError(
            f"the decision log in {store.describe()} is not one of the embedded engine, or its first checkpoint is "
            "still to come. The savepoint of a Spark query is made of its checkpoint"
        )
    request, start = Request(secrets.token_hex(8), kind.name, target), view.start
    for key in store.list_keys():  # asked of earlier runs
        if key.startswith((_REQUEST, _ANSWER)) and key[1:] != key_of(start)[1:]:
            store.delete(key)
    try:
        return _wait(store, request, start, time.monotonic() + timeout)
    finally:
        with suppress(StoreError):
            # Another command's request may be there by now, and must stay.
            if store.get(_key(_REQUEST, start)) == msgspec.json.encode(request):
                store.delete(_key(_REQUEST, start))


def _wait(store: LogStore, request: Request, start: int, until: float) -> str:
    text, is_written = msgspec.json.encode(request), False
    while True:
        key = _key(_REQUEST, start)
        # Or the answer to its put was lost, and repeated; else the run takes another command's first.
        is_written = is_written or store.put_if_absent(key, text) or store.get(key) == text
        # Before the answer is looked for, so that one that comes between the two looks is not missed.
        late, restarted = time.monotonic() >= until, read(store).start != start
        untaken = not is_written or store.get(_key(_REQUEST, start)) == text
        data = store.get(_key(_ANSWER, start))
        answer = (
            decode_json(data, RequestAnswer, LogDamagedError, "the answer of the run") if data is not None else None
        )
        # It may be the answer to an earlier command, which no longer waited for it.
        if answer is not None and answer.id == request.id:
            store.delete(_key(_ANSWER, start))
            if answer.error:
                raise CheckpointFailedError(answer.error)
            return answer.made
        if restarted:
            raise CheckpointFailedError("the pipeline was restarted, so the request was not answered: repeat it")
        if late and untaken:
            raise CheckpointFailedError(
                f"no run answers: is the pipeline running, with the decision log in {store.describe()}? "
                "No savepoint was made"
            )
        if late:
            raise CheckpointFailedError(f"the savepoint {request.target} is still being made: look for it later")
        time.sleep(_LOOK_SECONDS)


def answer_request(store: LogStore, start: int, make: Callable[[CheckpointKind, str], str]) -> None:
    """Take the request that waits for the run of this START, if there is one, and answer it.

    Raises:
        StoreError: The store did not answer, or holds no request that can be read, which is deleted.
    """
    data = store.get(_key(_REQUEST, start))
    if data is None:
        return
    # Before it acts: a run that fails on the way must not act on it again.
    store.delete(_key(_REQUEST, start))
    request = decode_json(data, Request, LogDamagedError, "a request for a savepoint")
    if request.kind not in CheckpointKind.__members__:
        raise LogDamagedError(f"a request in {store.describe()} asks for {request.kind!r}, which is not known")
    try:
        answer = RequestAnswer(request.id, made=make(CheckpointKind[request.kind], request.target))
    except OncewardError as error:
        answer = RequestAnswer(request.id, error=str(error))
    # An answer that nobody has fetched would stand in the way of this one.
    store.delete(_key(_ANSWER, start))
    store.put_if_absent(_key(_ANSWER, start), msgspec.json.encode(answer))
