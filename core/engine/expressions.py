"""What an SQL expression over a row may be: looked at as DuckDB parses it, before any row is there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARSE: Final = "SELECT json_serialize_sql(?)"
_AGGREGATES: Final = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
_NOT_OF_ONE_ROW: Final = {"WINDOW": "a window function", "SUBQUERY": "a subquery"}
_SEVERAL_ROWS: Final = frozenset({"unnest", "unlist", "generate_subscripts"})


class Expression(NamedTuple):
    """An expression that looks at one row."""

    text: str
    columns: frozenset[str] | None
    """Names that it looks at, in lower case; None if it may look at all (`*`)."""


def parse(database: Any, text: str, where: str) -> Expression:
    """Look at an expression.

    Args:
        database: A connection of DuckDB.
        text: The expression.
        where: Names sink and option, for errors.

    Raises:
        ConfigurationError: It is no expression, or gives no value for a single row.
    """
    (answer,) = database.execute(_PARSE, [f"SELECT {text}"]).fetchone()
    parsed = json.loads(answer)
    if parsed.get("error"):
        raise ConfigurationError(f"{where}: {parsed['error_message']}")
    node = parsed["statements"][0].get("node", {})
    alone = len(parsed["statements"]) == 1 and node.get("type") == "SELECT_NODE" and len(node["select_list"]) == 1
    more = ("modifiers", "where_clause", "group_expressions", "having", "sample", "qualify")
    if not alone or node["from_table"]["type"] != "EMPTY" or any(node[part] for part in more):
        raise ConfigurationError(f"{where} is not one SQL expression")
    aggregates = {row[0] for row in database.execute(_AGGREGATES).fetchall()}
    columns: set[str] = set()
    star = False
    for part in _parts(node["select_list"]):
        kind, function = part.get("class"), str(part.get("function_name", "")).lower()
        if kind == "FUNCTION" and function in aggregates:
            raise ConfigurationError(f"{where} is an aggregate ({function}): it must give a value for each row")
        if kind in _NOT_OF_ONE_ROW or (kind == "FUNCTION" and function in _SEVERAL_ROWS):
            what = _NOT_OF_ONE_ROW.get(str(kind), function)
            raise ConfigurationError(f"{where} has {what}: it must give one value for each row, and see no other row")
        star = star or kind == "STAR"
        columns |= {str(name).lower() for name in part.get("column_names", ())}
    return Expression(text, None if star else frozenset(columns))


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a parse tree."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for inner in tree:
            yield from _parts(inner)
