"""The tables of settings in docs/, from signatures and docstrings of the classes and functions that take them.

    python -m tests.settings_tables    # writes them into their pages

A page has the table of a public NAME between `<!-- settings: NAME -->` and `<!-- end of settings -->`. The meaning of
an argument is its entry under `Args:` (or `Attributes:`). What all sinks take is in one table, of `EverySink`.
"""

from __future__ import annotations

import inspect
import re
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import onceward
from onceward.core.contract.pipeline_settings import EXACTLY_ONCE
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.text_options import as_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
NO_OPTION: dict[str, str] = dict.fromkeys(("select", "where"), "")
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "FileSink": NO_OPTION | {"folder": "path", "format": "fileFormat"},
    "HttpSink": NO_OPTION | {"headers": "header.NAME"},
    "KafkaSink": NO_OPTION | {"bootstrap_servers": "kafka.bootstrap.servers", "config": "kafka.*"},
    "KafkaSource": {
        "bootstrap_servers": "kafka.bootstrap.servers",
        "topics": "subscribe",
        "pattern": "subscribePattern",
        "starting": "startingOffsets",
        "ending": "endingOffsets",
        "config": "kafka.*",
        "isolation": "kafka.isolation.level",
        "group": "kafka.group.id",
        "timeout": "kafkaConsumer.pollTimeoutMs",
    },
    "PostgresSink": NO_OPTION | {"table": "dbtable"},
    "RedisSink": NO_OPTION,
    "SqlAlchemySink": NO_OPTION | {"table": "dbtable"},
    "exactly_once": {"df": "", "sinks": "", **dict.fromkeys(EXACTLY_ONCE.settings, "")}
    | {name: option for option, name in OF_FORMATS.items()},
}
"""For what Spark formats make: options that are not the argument in camel case; "" for an argument without option."""
EVERY_SINK = "EverySink"
SHARED = {"name", "select", "where"}
"""Arguments of every sink."""

_ALIASES = dict.fromkeys(
    ("Body", "CommitMode", "FileFormat", "Form", "InvalidTimestamps", "Isolation", "KeyFormat", "Probe", "WriteMode"),
    "str",
) | {"AnyOnLost": "OnLost | str"}
"""Types that list a few words, which the meaning lists too."""
_MARKED = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?)+)", re.MULTILINE)
_PAGE = re.compile(r"docs/([\w-]+\.md)")


def filled(text: str) -> str:
    """A page with its tables as they should be."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{table(found[2])}\n{found[3]}", text)


def table(name: str) -> str:
    """The table of one class or function."""
    if name == EVERY_SINK:
        return _table("KafkaSink", SHARED)
    shared = SHARED if name.endswith("Sink") else set[str]()
    return _table(name, {parameter.name for parameter in _parameters(name)} - shared)


def options(name: str) -> dict[str, str]:
    """The option for each argument, by what the table says."""
    given = {p.name: OPTIONS[name].get(p.name, as_option(p.name)) for p in _parameters(name)}
    return {argument: option for argument, option in given.items() if option}


def _table(name: str, arguments: AbstractSet[str]) -> str:
    head = ["argument", *(["option"] if name in OPTIONS else []), "type", "default", "meaning"]
    rows = [head, ["---"] * len(head), *_rows(name, arguments)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(name: str, arguments: AbstractSet[str]) -> Iterator[list[str]]:
    meanings = _meanings(inspect.getdoc(getattr(onceward, name)) or "")
    for parameter in _parameters(name):
        if parameter.name not in arguments:
            continue
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        row = [
            f"`{stars}{parameter.name}`",
            _type(parameter.annotation),
            _default(parameter),
            meanings[parameter.name],
        ]
        if name in OPTIONS:
            option = options(name).get(parameter.name)
            row.insert(1, f"`{option}`" if option else "")
        yield [cell.replace("|", "\\|") for cell in row]


def _parameters(name: str) -> list[inspect.Parameter]:
    return [*inspect.signature(getattr(onceward, name)).parameters.values()]


def _meanings(doc: str) -> dict[str, str]:
    section = _SECTION.search(doc)
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: _PAGE.sub(r"[\1](\1)", " ".join(text.split())) for name, text in entries}


def _type(annotation: Any) -> str:
    """How a type is shown; that of a msgspec.Struct's field is no text, and may carry its limits or list its values."""
    if not isinstance(annotation, str):
        kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        kinds = [
            get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds if kind is not type(None)
        ]
        annotation = " | ".join("str" if get_origin(kind) is Literal else kind.__name__ for kind in kinds)
    annotation = _ALIASES.get(annotation.removesuffix(" | None"), annotation.removesuffix(" | None"))
    return "`" + annotation.replace("Names", "list[str]").replace(" | ", "` or `") + "`"


def _default(parameter: inspect.Parameter) -> str:
    value: Any = parameter.default
    if value is parameter.empty:
        return "" if parameter.kind is parameter.VAR_POSITIONAL else "required"
    if value in (None, ()):
        return ""
    shown = value.value if isinstance(value, Enum) else value
    return f'`"{shown}"`' if isinstance(shown, str) else f"`{shown}`"


def main() -> None:
    """Write the tables into their pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
