"""The simulator of tests/ and the contracts of stores and ledgers, for tests that compare them with real services."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

TESTS = Path(__file__).parent.parent / "tests"


def load(name: str, path: Path) -> ModuleType:
    """Import a module or package by its path: tests/ is no package of this folder's tests."""
    if name in sys.modules:
        return sys.modules[name]
    folders = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulator = load("onceward_simulator", TESTS / "simulator" / "__init__.py")
"""The package; its modules are its attributes."""
store_contract = load("onceward_store_contract", TESTS / "store_contract.py")
ledger_contract = load("onceward_ledger_contract", TESTS / "ledger_contract.py")
