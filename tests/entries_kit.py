"""Entries of a decision log, one of each type."""

from __future__ import annotations

from onceward.core.contract.transaction import Committable
from onceward.core.log import Completed, Decide, Entry, EpochInput, Resolved, Rewind, Rewound, Start, Void

NAMES = {"pipeline": "p", "log": "0a0b0c0d", "writer_id": "00112233"}
BASE = {**NAMES, "position": 7, "start": 3, "at": "2024-05-01T00:00Z"}
COMMITTABLE = Committable(
    kind="kafka",
    pipeline="p",
    sink="a",
    log="0a0b0c0d",
    generation=3,
    epoch=5,
    transaction="onceward:1:p:a:0a0b0c0d:beef:0",
    handle={"producer": 12, "epoch": 3, "é": [None, True, 1.5]},
    rows=9,
)
ENTRIES: list[Entry] = [
    Start(**BASE),
    Decide(
        **BASE,
        epoch=5,
        sinks=("a", "b"),
        committables=(COMMITTABLE,),
        input=EpochInput(query="q", digest="d", start=[1, {"x": 2}], end=None),
        state={"count": {"file": "x"}},
    ),
    Completed(**BASE, epoch=5, floor=4),
    Rewind(**BASE, rewind=Rewound(query="q", epoch=2, why="wrong code")),
    Void(**BASE, epoch=5, proofs=("gid: absent",)),
    Resolved(**BASE, epoch=5, transaction="t", action="skip", who="me", why="lost"),
]
