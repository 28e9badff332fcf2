"""Help of the commands in a narrow terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from onceward.cli.main import command

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves(one: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    commands = getattr(one, "commands", None)
    if commands is None:
        yield path, one
    for name, below in (commands or {}).items():
        yield from leaves(below, (*path, name))


@pytest.mark.parametrize(("path", "one"), [pytest.param(*each, id=" ".join(each[0])) for each in leaves(command())])
def test_no_name_of_an_option_is_cut_at_60_columns(path: tuple[str, ...], one: Any) -> None:
    shown = CliRunner().invoke(_app(), [*path, "--help"], env={"COLUMNS": "60", "TERMINAL_WIDTH": "60"})
    assert shown.exit_code == 0, shown.output
    names = [name for param in one.get_params(typer.Context(one)) for name in (*param.opts, *param.secondary_opts)]
    words = shown.output.split()
    assert [name for name in names if name.startswith("--") and name not in words] == []


def _app() -> Any:
    from onceward.cli.main import app

    return app
