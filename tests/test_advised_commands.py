"""Law of commands to copy: no text of a note, an entry or a server becomes a part of one, unless a connector allows it.

A connector allows addresses, places and settings by their name and value; an address comes from the decision alone.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from onceward.cli.advice import with_advice
from onceward.cli.main import app
from onceward.cli.operate import Search
from onceward.cli.ui.desk import Desk
from onceward.core.checkpoint import CommitPolicy
from onceward.core.contract.connector import connectors
from onceward.core.contract.transaction import Committable
from onceward.core.log import EpochInput, LogView, LogWriter, MemoryStore
from onceward.core.log.notes import note
from onceward.core.operations.status import assess

from .status_kit import NOW, at, written
from .ui_kit import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onceward.core.log.note_kinds import Note

CODE = ("oauth_cb=os:system", "plugin.library.paths=/tmp/evil", "ssl.engine.location=/tmp/evil", "ledger_schema=own")
PATTERNS = (
    "a:b@", "p:q@;id;'", "password=", "passwd='x", "://", "x://u:p@", "'", '"', "`id`", "$(id)", "${IFS}", ";", "|",
    "&", "\n", "\r", "\t", "\0", "\x1b[2J", "\u202e", " ", "--yes", "--set", "kafka:oauth_cb=os:system", "-", "~", "#",
    "broker:9092", "!", "host=db", "=", "secret=", "token: ", "***",
)  # fmt: skip
"""Pieces of what a shell, a redaction of secrets or a parser of options reads in another way than as text."""
texts = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(PATTERNS), max_size=5).map("".join),
    st.sampled_from((*CODE, "broker:9092", "host=db user=o", "mariadb://o@db/shop", "evil:9092", "sums")),
)
values = st.sampled_from((None, 7, -1.0, "x", [], {}, ["x"], {"x": None}, "x" * 3000))
DATABASE = {"system": "postgres", "address": "host=db user=o", "settings": [], "missing": "", "place": "sums"}
as_written = st.sampled_from(
    [
        {"system": system, "address": address, "settings": [], "missing": "", "place": "sums"}
        for system, address in (
            ("kafka", "broker:9092"),
            ("postgres", "host=db user=o"),
            ("sql", "mariadb://o@db/shop"),
        )
    ]
)
altered = st.fixed_dictionaries(
    {},
    optional={
        "system": st.sampled_from(("kafka", "postgres", "redis", "files", "x")),
        "address": texts,
        "settings": st.lists(
            st.sampled_from(CODE) | st.builds("ledger_schema={}".format, texts), min_size=1, max_size=2
        ),
        "missing": texts,
        "place": texts,
    },
)
systems = st.builds(lambda good, worse: {**good, **worse}, as_written, altered)
of_any_kind = values | systems
targets = st.fixed_dictionaries({"a": systems}, optional={"b": of_any_kind, "c; id": systems}) | values
given_targets = st.sampled_from(
    ((), ("--at", "kafka=mine:9092"), ("--at", "postgres=postgresql://o:pw@db/shop"), ("--sinks", "jobs:SINKS"))
)
states = st.sampled_from(("waiting", "failed", "source"))


def view_of(decided: Any, *, completed: bool) -> LogView:
    writer = LogWriter(MemoryStore(), "orders", CommitPolicy(now=lambda: at(120)))
    writer.start()
    committables = [
        Committable(
            kind="kafka", pipeline="orders", sink=sink, log=writer.view.log, generation=0, epoch=0, transaction=sink
        )
        for sink in ("a", "b")
    ]
    targets_ = decided if isinstance(decided, dict) else {}
    writer.decide(0, committables, sinks=["a", "b"], epoch_input=EpochInput(), targets=targets_)
    if completed:
        writer.complete(0)
    return writer.view


def notes_of(state: str, targets_: Any, text: str, source: Any) -> list[Note]:
    noted = written(110, what="start", targets=targets_, timeouts=targets_)
    if state == "failed":
        noted += written(100, what="failure", error=text, epoch=text)
    if state == "source":
        noted += written(5, what="source", source=text, seconds=20, why="no answer", system=source)
    return noted


def words_of(command: str) -> Iterator[list[str]]:
    """Return the words of each command as a shell reads them; an operator of the shell ends a command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in lexer:
        if token == ";":
            yield words
            words = []
        else:
            assert not set(token) <= set("();<>|&"), command
            words.append(token)
    yield words


def allowed(words: Sequence[str], decided: Any, own: Sequence[str]) -> None:
    """Check each word of a command against what may be there."""
    assert words[:1] == ["onceward"]
    pairs = words[words.index("--store") :]
    entries = decided.values() if isinstance(decided, dict) else ()
    addresses = [one.get("address") for one in entries if isinstance(one, dict)]
    for option, value in zip(pairs[::2], pairs[1::2], strict=False):
        if value.replace("***", "pw") in own:
            continue
        system, _, rest = value.partition("=" if option == "--at" else ":")
        kind = connectors().get(system)
        match option:
            case "--store":
                assert value == "/data/orders"
            case "--at" if kind is not None and rest in addresses:
                assert re.fullmatch(kind.address_pattern, rest, re.ASCII)
            case "--at":
                assert value == "SYSTEM=ADDRESS" or (kind is not None and rest == kind.address_form)
            case "--set":
                assert kind is not None
                assert re.fullmatch(r"ledger_schema=\w+", rest, re.ASCII)
            case "--place":
                assert kind is not None
                assert re.fullmatch(kind.place_pattern, rest, re.ASCII)
            case "--sinks":
                assert value == "MODULE:NAME"
            case _:
                assert option == "--yes"


@example("waiting", ({}, {"a": DATABASE | {"settings": ["ledger_schema=$(id)"]}}, {}), "", ())
@settings(max_examples=300)
@given(states, st.tuples(targets, targets, of_any_kind), texts, given_targets)
def test_nothing_of_a_note_or_an_entry_becomes_a_part_of_a_command(
    state: str, written: tuple[Any, Any, Any], text: str, own: Sequence[str]
) -> None:
    noted, decided, source = written
    status = assess(
        "orders", "folder a", view_of(decided, completed=state != "waiting"), notes_of(state, noted, text, source), NOW
    )
    shown = with_advice(status, "/data/orders", own)
    for words in words_of(shown.command) if shown.command else ():
        allowed(words, decided, own)


@given(texts.filter(bool), given_targets)
def test_a_folder_of_any_name_is_one_word_of_the_command(name: str, own: Sequence[str]) -> None:
    store = f"/data/{name}"
    status = assess("orders", "folder a", view_of({}, completed=False), [], NOW)
    shown = with_advice(status, store, own)
    if not shown.command:
        assert "cannot be shown" in shown.fill_in
        return
    for words in words_of(shown.command):
        assert words[0] == "onceward"
        assert words[3] == "--store"
        assert words[5] in {"--at", "--sinks"}
        assert words[4] in {store, "UNSHOWN"} or "***" in words[4] or "…" in words[4]


HOSTILE = {
    "files": {
        "system": "kafka",
        "address": "evil:9092; touch pwned",
        "settings": ["oauth_cb=os:system", "sasl.oauthbearer.config=touch pwned"],
        "missing": "; touch pwned",
        "place": "$(touch pwned)",
    }
}


@pytest.fixture
def hostile(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.finish(0)
    store = folder.case.store
    note(store, "start", {"position": 0, "targets": HOSTILE, "timeouts": {"$(touch pwned)": 5}})
    note(store, "failure", {"epoch": 1, "error": "x'; touch pwned #"})
    return folder


def test_no_command_of_the_tools_and_the_page_runs_a_note(hostile: Folder, tmp_path: Path) -> None:
    """Each command that is shown is run by a shell in which `onceward` does nothing."""
    store = str(hostile.checkpoints)
    orders = str(hostile.orders)
    shown = json.loads(CliRunner().invoke(app, ["status", "--store", store, "--json"]).stdout)
    commands = [one["command"] for one in shown]
    commands += [
        json.loads(CliRunner().invoke(app, ["checkpoints", "--store", orders, "--json"]).stdout)["status"]["command"]
    ]
    update = Desk(hostile.watch(), Search()).state()
    assert update is not None
    parts = [json.loads(bytes(part)) for part in update.parts.values()]
    commands += [part["status"]["command"] for part in parts if "status" in part]
    printed = CliRunner().invoke(app, ["status", "--store", store]).stdout
    commands += [line.partition(": ")[2] for line in printed.splitlines() if line.startswith("  → ")]
    assert len(commands) == 4
    for command in commands:
        assert "--set" not in command
        assert "evil" not in command
        subprocess.run(["bash", "-c", f"onceward() {{ :; }}; {command}"], cwd=tmp_path, check=True, timeout=30)
    assert not (tmp_path / "pwned").exists()
