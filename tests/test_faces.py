"""The table of ways to write from Spark and of faults names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from integration.faces import FAULTS, SHORT, TABLE, Never, Untried
from integration.matrix import SLICE

ROOT = Path(__file__).parents[1]
CELLS = {(face, fault): cell for face, row in TABLE.items() for fault, cell in row.items()}
NAMED = sorted({cell for cell in CELLS.values() if isinstance(cell, str)})


def test_each_face_has_a_cell_for_each_fault() -> None:
    assert {face: tuple(row) for face, row in TABLE.items()} == dict.fromkeys(TABLE, FAULTS)
    assert all(cell.because if isinstance(cell, Never) else cell for cell in CELLS.values())


@pytest.mark.parametrize("test", NAMED)
def test_each_test_of_the_table_is_collected(test: str) -> None:
    path, *names = test.split("::")
    nodes: list[ast.stmt] = ast.parse((ROOT / path).read_text()).body
    for name in names:
        [one] = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
        assert name.startswith(("test_", "Test"))
        nodes = one.body


def test_what_nobody_has_tried_does_not_grow() -> None:
    assert sum(isinstance(cell, Untried) for cell in CELLS.values()) <= 4


def test_the_matrix_runs_the_short_form_on_each_version_of_spark() -> None:
    assert set(SHORT) <= set(SLICE)
