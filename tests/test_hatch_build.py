"""The build refuses a Python that is too old at once, and says which one it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "hatch_build.py"


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Python(str(FILE.parent), {})


def test_a_python_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SystemExit, match=r"onceward needs Python 3\.11 or newer, and this is 3\.10\.13 \(/"):
        hook().update({})


def test_this_python_is_accepted() -> None:
    hook().update({})
