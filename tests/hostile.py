"""What somebody might put in the place of a value: into committables, names and rows."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core.contract.transaction import Committable
from onceward.core.errors import LogDamagedError, OncewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from onceward.sinks import TwoPhaseCommitSink

NESTED = "[" * 2_000 + "]" * 2_000
"""As JSON: more than parsers follow."""
TEXTS = (
    "",
    "'; DROP TABLE words; --",
    '"; DROP TABLE words; --',
    "x' OR '1'='1",
    "pg_catalog.pg_class",
    "%s %(name)s :name ${x} {0}",
    "../../../etc/passwd",
    "a\n/../../b",
    "nul\0inside",
    "\u202eright to left",
    "9" * 5000,
)
VALUES = (*TEXTS, None, True, -1, 2**63, 2**64, 10**40, 1.5, [], {}, ["x"], {"x": None})


def altered(good: Committable) -> Iterator[tuple[str, bytes]]:
    """The JSON of a committable, with one field after another changed; and which."""
    fields: dict[str, Any] = msgspec.to_builtins(good)
    for name, own in fields.items():
        for value in VALUES:
            if value != own:
                yield f"{name}={value!r:.60}", _json({**fields, name: value})
        mark = "\N{SNOWMAN}"
        for what, raw in (("nested", NESTED.encode()), ("not UTF-8", b'"\xff"'), ("a surrogate", b'"\\ud800"')):
            yield f"{name}={what}", _json({**fields, name: mark}).replace(f'"{mark}"'.encode(), raw)
    handle = fields["handle"]
    for name, value in product(handle, VALUES):
        if value != handle[name]:
            yield f"handle.{name}={value!r:.60}", _json({**fields, "handle": {**handle, name: value}})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()  # msgspec writes no integers above 64 bits


def check_altered(
    sink: TwoPhaseCommitSink[Any], good: Committable, state: Callable[[], Any], harmless: Collection[str] = ()
) -> None:
    """See that each altered committable is refused by one of onceward's errors, and that nothing changes.

    Args:
        sink: Which prepared it.
        good: What it prepared.
        state: All that may be touched, to be compared.
        harmless: Fields that say nothing of which transaction it is.
    """
    before = state()
    for what, text in altered(good):
        try:
            bad = Committable.from_json(text)
        except LogDamagedError:
            continue
        if what.partition("=")[0].partition(".")[0] in harmless:
            with suppress(OncewardError):
                sink.inspect_many([bad])
        else:
            for act in (sink.commit, sink.abort, lambda one: sink.inspect_many([one])):
                with pytest.raises(OncewardError) as caught:
                    act(bad)
                str(caught.value).encode()
        assert state() == before, what
