"""`onceward new-sink NAME`: a copy of examples/custom_sink.py and its conformance test, under a name of your own."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Final

from onceward.core.errors import ConfigurationError

_SKELETON: Final = Path(__file__).with_name("skeleton")
"""The wheel contains copies; in a checkout these are links to the examples."""


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write NAME.py and test_NAME.py.

    Args:
        name: Name of the module, for example `billing_sink`; its class is named `BillingSink`.
        folder: Folder to write them to.

    Returns:
        The two files.

    Raises:
        ConfigurationError: The name is not a valid module name, or a file already exists.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or not name[0].isalpha():
        raise ConfigurationError(f"{name!r} cannot be a module's name: give something like billing_sink")
    texts = {folder / f"{name}.py": "sink.txt", folder / f"test_{name}.py": "test.txt"}
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)} is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, skeleton in texts.items():
        path.write_text(_renamed((_SKELETON / skeleton).read_text(), name))
    return list(texts)


def _renamed(text: str, name: str) -> str:
    named = {
        "JsonLinesSink": "".join(part.capitalize() for part in name.split("_")),
        "json-lines": name.replace("_", "-"),
        "custom_sink": name,
    }
    for old, new in named.items():
        text = text.replace(old, new)
    return text
