"""A pytest plugin: the code under test must be the copy that has the mutant, not the one that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

WRONG_CODE = 70
"""Exit code of a run that would have tested other code."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop before the first test unless every module of onceward comes from this tree."""
    root = Path(session.config.rootpath).resolve()
    loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "onceward"]
    files = [Path(file).resolve() for module in loaded if (file := getattr(module, "__file__", None)) is not None]
    strange = [str(file) for file in files if not file.is_relative_to(root)]
    if strange:
        pytest.exit(f"not of {root}: {', '.join(strange)}", returncode=WRONG_CODE)
