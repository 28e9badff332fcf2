"""Comments at the lines that keep a promise cite points that their module makes."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    *sorted((ROOT / "core/log").glob("*.py")),
    *sorted((ROOT / "core/checkpoint").glob("*.py")),
    ROOT / "connectors/kafka/pool.py",
    ROOT / "connectors/kafka/commits.py",
    ROOT / "connectors/kafka/transaction_coordinator.py",
    ROOT / "connectors/database/ledger_tables.py",
    ROOT / "connectors/redis/script.py",
    ROOT / "connectors/spark/write/handler.py",
    ROOT / "core/operations/resolve.py",
    ROOT / "core/contract/transaction.py",
    ROOT / "sinks/folder_claims.py",
]
LEAST = 15
"""Comments on lines of their own among a thousand lines of the protocol."""


def comments(path: Path) -> list[str]:
    with tokenize.open(path) as file:
        return [token.string for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_number_that_a_comment_cites_is_a_point_of_its_module(path: Path):
    points = re.findall(r"^(\d+)\. ", ast.get_docstring(ast.parse(path.read_text())) or "", re.MULTILINE)
    cited = {number for comment in comments(path) for number in re.findall(r"\((\d+)\)", comment)}
    assert cited <= set(points)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_cited_invariant_or_rule_is_in_the_map(path: Path):
    text = (ROOT / "ARCHITECTURE.md").read_text()
    part = text.partition("## What must always hold")[2]
    invariants, _, rules = part.partition("### Rules of the decision log")
    log_rules, _, further = rules.partition("### Further rules")
    known = {
        "Invariant": set(re.findall(r"^(\d+)\. ", invariants, re.MULTILINE)),
        "Rule": set(re.findall(r"^(?:(?=\d+\. )|- \*\*)(\d+|[A-Z])\.", log_rules + further, re.MULTILINE)),
    }
    for comment in comments(path):
        for kind, number in re.findall(r"\((Invariant|Rule|invariant|rule) (\w+)\)", comment):
            assert number in known[kind.capitalize()], comment


def test_lines_of_the_protocol_say_why():
    lines = [line for path in MODULES for line in path.read_text().splitlines()]
    own = sum(line.lstrip().startswith("#") for line in lines)
    assert 1000 * own / len(lines) >= LEAST
