"""Help: every command has an example that it understands, a group, and no word of Python's types."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import typer

from onceward.cli.help_texts import EXAMPLES, GROUPS
from onceward.cli.main import command

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(root: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All commands that do something, by what is typed."""
    for name, each in root.commands.items():
        words = f"{path} {name}".strip()
        if hasattr(each, "commands"):
            yield from commands(each, words)
        else:
            yield words, each


ROOT = command()
COMMANDS = dict(commands(ROOT))


def test_every_command_has_a_group_and_an_example() -> None:
    assert list(ROOT.commands) == list(GROUPS)
    assert set(COMMANDS) == set(EXAMPLES)


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_names_its_command_and_options_that_it_has(words: str) -> None:
    typed = re.sub(r'^eval "\$\((.*)\)"$', r"\1", EXAMPLES[words])
    start = ["onceward", *words.split()]
    parts = shlex.split(typed)
    assert parts[: len(start)] == start
    rest = parts[len(start) :]
    own = rest[: rest.index("--")] if "--" in rest else rest
    known = {option for each in COMMANDS[words].params for option in (*each.opts, *each.secondary_opts)}
    assert {part for part in own if part.startswith("-")} <= known


@pytest.mark.parametrize("words", COMMANDS)
def test_help_names_no_type_of_python(words: str) -> None:
    context = typer.Context(COMMANDS[words], info_name=words)
    for each in COMMANDS[words].params:
        assert not re.search(r"<(list|str|int|float|path|bool)", str(each.display_type_rich(context)))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_paragraph_of_help_is_one_line_that_any_width_can_break(words: str) -> None:
    assert not re.search(r"[^\n]\n[^\n]", COMMANDS[words].help)
