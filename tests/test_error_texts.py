"""A message that contains a foreign error says something, whatever that error's text is: some have none."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceward.core import errors
from onceward.core.errors import named_text_of, text_of

from .layout import ROOT, nodes_of, python_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDERS = ("core", "connectors", "sinks", "sources", "cli", "testing", "src")


def unguarded(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines where a foreign error's own text goes into a string."""
    for node in nodes:
        for name, types in bound(node):
            if types - own():
                yield from shown(node, name)


@cache
def own() -> set[str]:
    """Return the names of the classes of the product, whose errors are all raised with a text."""
    return {node.name for path in files() for node in nodes_of(path) if isinstance(node, ast.ClassDef)}


def files() -> list[Path]:
    return python_files(*FOLDERS)


def bound(node: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield the names of errors that are bound in a node's body, with their types."""
    match node:
        case ast.ExceptHandler(name=str(name), type=ast.expr() as types):
            yield name, names_of(types)
        case ast.FunctionDef(args=arguments) | ast.Lambda(args=arguments):
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                types = {"Any"} if each.annotation is None else names_of(each.annotation) - {"None"}
                of_errors = any(type_.endswith(("Error", "Exception")) for type_ in types)
                if of_errors or (each.arg == "error" and types == {"Any"}):
                    yield each.arg, types


def names_of(types: ast.expr) -> set[str]:
    match types:
        case ast.Tuple(elts=several):
            return set().union(*map(names_of, several))
        case ast.BinOp(left=left, right=right):
            return names_of(left) | names_of(right)
        case _:
            return {ast.unparse(types).rpartition(".")[2]}


def shown(node: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines that take an error's text without an `or` that says what to take for an empty one."""
    match node:
        case ast.BoolOp(op=ast.Or(), values=[ast.Call(func=ast.Name(id="str")), *_]):
            return
        case ast.FormattedValue(value=ast.Name(id=each)) if each == name and node.conversion != ord("r"):
            yield node.lineno
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=each)]) if each == name:
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from shown(child, name)


def test_foreign_errors_are_shown_by_their_texts_or_names() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line}: use text_of or named_text_of of core.errors"
        for path in files()
        if path != Path(errors.__file__).resolve()
        for line in sorted({*unguarded(nodes_of(path))})
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("f'cannot read: {error}'", "f'cannot read: {text_of(error)}'"),
        ("f'{type(error).__name__}: {error}'", "named_text_of(error)"),
        ("str(error)", "text_of(error)"),
    ],
)
def test_an_error_that_is_shown_as_it_is_is_found(wrong: str, right: str) -> None:
    around = "try:\n    pass\nexcept (SinkError, {}) as error:\n    said = {}"
    assert found(around.format("OSError", wrong)) == [4]
    assert found(around.format("StoreError", wrong)) == []
    assert found(around.format("OSError", right)) == []
    assert found(f"def said(error: Exception | None):\n    return {wrong}") == [2]
    assert found(f"said = lambda error: {wrong}") == [1]


def found(text: str) -> list[int]:
    return [*unguarded(ast.walk(ast.parse(text)))]


@pytest.mark.parametrize(
    ("error", "text", "named"),
    [
        (OSError(), "OSError", "OSError"),
        (TimeoutError(), "TimeoutError", "TimeoutError"),
        (AssertionError("\n "), "AssertionError", "AssertionError"),
        (OSError(2, "No such file"), "[Errno 2] No such file", "FileNotFoundError: [Errno 2] No such file"),
        (KeyError("a"), "'a'", "KeyError: 'a'"),
    ],
)
def test_an_error_without_a_text_is_called_by_its_class(error: Exception, text: str, named: str) -> None:
    assert text_of(error) == text
    assert named_text_of(error) == named
