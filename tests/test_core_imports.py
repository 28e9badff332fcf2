"""core/ decides; it knows no Spark, no broker, no database, and no other package of the project."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "core").rglob("*.py"))
FORBIDDEN = {"pyspark", "py4j", "kafka", "confluent_kafka", "psycopg", "pgpq", "sqlalchemy", "fsspec"}
FORBIDDEN |= {"httpx", "redis", "duckdb"}


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Level and name of everything a module imports, wherever in it."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append((node.level, node.module or ""))
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_only_itself_and_no_client_of_a_target(path: Path):
    depth = len(path.relative_to(ROOT).parts) - 1
    allowed = {"log/sql.py": {"sqlalchemy"}, "log/objects.py": {"fsspec"}, "engine/projection.py": {"duckdb"}}
    mine = allowed.get(str(path.relative_to(ROOT / "core")), set())
    for level, name in imported(ast.parse(path.read_text())):
        assert level <= depth, f"{path} imports {name!r} from outside of core/"
        if level == 0:
            top = name.split(".")[0]
            assert top not in FORBIDDEN - mine
            assert top not in {"onceward", "cli", "core", "sinks", "sources", "connectors", "testing"}


def test_importing_core_loads_no_client():
    code = (
        "import sys, onceward.core, onceward.core.checkpoint, onceward.core.log, onceward.core.contract.transaction\n"
        f"print(sorted({FORBIDDEN!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )
    assert done.stdout.strip() == "[]"


def test_permits_are_made_of_what_was_read_out_of_the_log_and_nowhere_else():
    making = {
        str(path.relative_to(ROOT / "core"))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CommitPermit"
    }
    assert making == {"log/view.py"}
