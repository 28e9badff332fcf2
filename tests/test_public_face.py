"""`from onceward import …`: every name of the contract, and nothing loaded before it is asked for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

import onceward
from onceward.core import errors

ROOT = Path(__file__).parent.parent
PUBLIC = ("errors", "types", "sinks", "sources", "connectors", "operations")
IMPORTS = re.compile(r"^\s*(?:from|import) (onceward[\w.]*)", re.MULTILINE)
MAY_IMPORT = re.compile(rf"onceward(\.({'|'.join(PUBLIC)}|testing(\.\w+)*))?")
USERS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "cli/skeleton").glob("*.txt")),
]
HEAVY = (
    "pyspark",
    "pyarrow",
    "numpy",
    "confluent_kafka",
    "kafka",
    "psycopg",
    "sqlalchemy",
    "fsspec",
    "msgspec",
    "typer",
)
PACKAGE: Any = onceward
"""As type checkers do not see it: with names that are computed."""


@pytest.mark.parametrize("name", sorted(onceward._NAMES.homes))
def test_each_name_is_there_and_says_where_it_lives(name: str):
    value = getattr(onceward, name)
    assert getattr(value, "__module__", value.__name__).startswith("onceward.")  # a module has a name alone
    assert name in dir(onceward)


def test_all_is_what_can_be_had():
    assert set(PACKAGE.__all__) == set(dir(onceward)) == {*onceward._NAMES.homes, "__version__"}


def test_the_table_of_names_is_what_type_checkers_see():
    """Type checkers take `from … import X as X` for exported, and no list that is computed."""
    [block] = [
        node
        for node in ast.parse(Path(onceward.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        (f".{node.module}", alias.name, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(module, name, name) for name, (module, _) in onceward._NAMES.homes.items()}


def test_each_extra_of_the_table_can_be_installed():
    extras = metadata.metadata("onceward").get_all("Provides-Extra") or []
    assert {extra for _, extra in onceward._NAMES.homes.values()} - {""} <= set(extras)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'KafkaSnik'"):
        _ = PACKAGE.KafkaSnik


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import onceward", HEAVY),
        ("from onceward import FileSink, KafkaSink, PostgresSink, TwoPhaseCommitSink", ("pandas", "rich", "typer")),
    ],
)
def test_what_is_not_asked_for_is_not_loaded(code: str, without: tuple[str, ...]):
    """Executors import sinks, each in several processes, and have no use for the command line."""
    code = f"import sys; {code}; print([name for name in {without} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_printed_without_the_commands():
    script = Path(sys.executable).with_name("onceward")
    command = [sys.executable, "-X", "importtime", script, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.stdout == f"onceward {onceward.__version__}\n"
    assert "onceward" in imported
    assert imported & {*HEAVY, "rich", "email", "zipfile"} == set()


@pytest.mark.parametrize("name", ["exactly_once", "read_stream", "register", "ProgressListener"])
def test_a_missing_pyspark_is_named_with_its_extra(name: str):
    code = f"import sys; sys.modules['pyspark'] = None; from onceward import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{name} needs pyspark: pip install 'onceward[spark]'" in done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_public_module_lists_is_there(name: str):
    module = import_module(f"onceward.{name}")
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for each in module.__all__:
        assert getattr(module, each) is not None
        assert each in dir(module)
    with pytest.raises(AttributeError):
        _ = module.nothing_of_this_name


def test_every_error_of_the_tree_is_public():
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(import_module("onceward.errors").__all__) == tree


@pytest.mark.parametrize("page", USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_import_public_modules_alone(page: Path):
    assert [module for module in IMPORTS.findall(page.read_text()) if not MAY_IMPORT.fullmatch(module)] == []


@pytest.mark.parametrize("name", ["Scope", "Piece", "Split", "Progress", "Remembered"])
def test_what_only_authors_of_sinks_and_sources_need_lives_there(name: str):
    assert name not in PACKAGE.__all__
    assert name in import_module("onceward.sources" if name in ("Piece", "Split") else "onceward.sinks").__all__
