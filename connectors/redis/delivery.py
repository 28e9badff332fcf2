"""One delivery: the script, the wait until it is on disk, and what the answers mean."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import DataLossError, EpochConflictError, RetryableSinkError, SinkError

from .client import clients, explained, translated
from .forms import FORMS
from .script import WRITE, marker_key

if TYPE_CHECKING:
    from onceward.core.names import TransactionName

    from .forms import Written
    from .settings import RedisSettings

_log = logging.getLogger("onceward.redis")

GO_ON: Final = (
    "It was emptied, or is another server. Bring its data back; or, to go on without what it had, run with "
    "durable=False until rows are written"
)
WAIT_SHARE: Final = 0.5
"""Share of the timeout of an answer for which the server itself waits for its disk and replicas."""


class Loss(StrEnum):
    """What to do if the server has lost what it had acknowledged (script.py, 5 and 6)."""

    LOUD = "loud"
    """Fail."""
    FIRST = "first"
    """Write: this delivery was never tried before, or if it was, rows and marker were lost together."""
    AGAIN = "again"
    """Write if the marker says that it is not here; leave it out if the marker is gone."""


@dataclass(frozen=True)
class Delivery:
    """Rows on their way.

    Attributes:
        name: Of their transaction.
        first: Number of the first of them in it.
        form: Of the rows.
        rows: As they are written.
        loss: What to do if the server has lost what it had acknowledged.
    """

    name: TransactionName
    first: int
    form: str
    rows: list[Written]
    loss: Loss

    def keys(self) -> list[bytes]:
        """KEYS of the script."""
        return [marker_key(self.name.scope), *(row.key for row in self.rows)]

    def arguments(self) -> list[Any]:
        """ARGV of the script."""
        name, form = self.name, FORMS[self.form]
        about = [name.scope.log, str(name), name.start, name.epoch, self.first, len(self.rows), *form, self.loss]
        for row in self.rows:
            about += [len(row.words), *row.words, len(row.gone), *row.gone]
        return about


def deliver(settings: RedisSettings, delivery: Delivery, *, durable: bool, replicas: int) -> None:
    """Write rows if they are not there yet, and wait until they are on disk.

    Args:
        settings: Of the server.
        delivery: The rows.
        durable: Whether to wait for the append-only file.
        replicas: How many replicas must have it in theirs too.

    Raises:
        RetryableSinkError: No answer, or not on disk in time.
        DataLossError: The server has lost what it had acknowledged.
        EpochConflictError: Another decision log has taken the names meanwhile.
        SinkError: It refuses.
    """
    what = "cannot write rows"
    with translated(settings, what):
        pipe = clients.get(settings).pipeline(transaction=False)
        keys = delivery.keys()
        pipe.execute_command("EVAL", WRITE, len(keys), *keys, *delivery.arguments())
        if durable:
            pipe.execute_command("WAITAOF", 1, replicas, int(settings.timeout * WAIT_SHARE * 1000))
        answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise explained(settings, what, answer)
    _check(settings, delivery, [_text(word) for word in answers[0]])
    if durable:
        _check_disk(settings, answers[1], replicas)


def _check(settings: RedisSettings, delivery: Delivery, words: list[str]) -> None:
    where, marker = settings.shown, marker_key(delivery.name.scope).decode()
    match words:
        case ["written" | "already"]:
            return
        case ["written", _]:
            _log.warning("%s had lost rows of %s, or its marker %s: going on", where, delivery.name, marker)
        case ["left out"]:
            _log.warning(
                "%s has lost %s. Rows %d to %d of %s may have been written before: they are left out",
                where,
                marker,
                delivery.first,
                delivery.first + len(delivery.rows) - 1,
                delivery.name,
            )
        case ["unclaimed"]:
            raise DataLossError(f"{where} has lost {marker}, which this writer had made. {GO_ON}")
        case ["ended"]:
            raise DataLossError(f"{where}: {delivery.name} is of an epoch that has ended, and its marker is deleted")
        case ["claimed", log]:
            raise EpochConflictError(f"{where}: decision log {log} has taken {marker} meanwhile")
        case ["behind", sent]:
            raise DataLossError(
                f"{where} has {sent} rows of {delivery.name}, and had acknowledged {delivery.first}: it has lost rows. "
                "Bring them back; or, to go on without them, run with durable=False until rows are written"
            )
        case ["type", key, kind]:
            wanted = FORMS[delivery.form].kind
            raise SinkError(f"{where}: key {key!r} is a {kind}, and not a {wanted}. Nothing of the delivery is written")
        case _:
            raise SinkError(
                f"{where}: this user lacks a right to {FORMS[delivery.form].command}, HSET or HDEL: {words}. Nothing "
                "of the delivery is written"
            )


def _check_disk(settings: RedisSettings, answer: list[int], replicas: int) -> None:
    local, remote = answer
    if local < 1 or remote < replicas:
        raise RetryableSinkError(
            f"{settings.shown} has the rows, but not yet on disk: here {local} of 1, at replicas {remote} of {replicas}"
        )


def _text(word: bytes | str) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else word
