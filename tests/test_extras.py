"""Each command works where only its own extras are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
NEEDS = {"ui/server": "ui", "ui/web": "ui"}
"""Modules of the command line that need an extra."""
MODULES = [str(path.relative_to(ROOT / "cli").with_suffix("")) for path in sorted((ROOT / "cli").rglob("*.py"))]

IMPORT = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for module in MODULES:
    importlib.import_module(module)
"""


def packages(requirements: list[str]) -> set[str]:
    """Names of the packages that are asked for, by themselves or by extras."""
    found: set[str] = set()
    for requirement in requirements:
        if extras := re.fullmatch(r"onceward\[(.*)\]", requirement):
            found = found.union(*(packages(EXTRAS[extra]) for extra in extras[1].split(",")))
        else:
            found.add(re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-"))
    return found


def modules_of(distributions: set[str]) -> set[str]:
    """Top-level modules that these distributions install."""
    owned = metadata.packages_distributions().items()
    return {module for module, owners in owned if distributions & {owner.lower().replace("_", "-") for owner in owners}}


def extra_of(module: str) -> str:
    return "demo" if module.startswith("demo/") else NEEDS.get(module, "")


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted({*map(extra_of, MODULES)}))
def test_every_module_of_the_command_line_imports_only_what_its_extra_installs(extra: str) -> None:
    everything = packages([*chain(*EXTRAS.values()), *PROJECT["dependency-groups"]["dev"]])
    others = everything - packages(EXTRAS.get(extra, []))
    blocked = modules_of(others)
    assert {"pytest", *(["sqlalchemy"] if extra != "demo" else [])} <= blocked
    modules = [f"onceward.cli.{m.replace('/', '.').removesuffix('.__init__')}" for m in MODULES if extra_of(m) == extra]
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED, MODULES = {blocked!r}, {modules!r}\n{IMPORT}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr


BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import inspect, pickle, pydoc
import onceward
from onceward.core.errors import ConfigurationError, MissingExtraError, MissingNameError

missing = sorted(name for name, (_, extra) in onceward._NAMES.homes.items() if extra)
present = sorted(set(onceward._NAMES.homes) - set(missing))
assert {"KafkaSink", "PostgresSink", "RocksDBBackend", "exactly_once"} <= set(missing), missing

for name in missing:
    assert not hasattr(onceward, name), name
    assert getattr(onceward, name, None) is None, name
    try:
        exec(f"from onceward import {name}")
    except ImportError as error:
        assert isinstance(error, MissingExtraError) and isinstance(error, ConfigurationError), name
        assert f"{name} needs {error.name}: pip install 'onceward[" in str(error), error
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    else:
        raise AssertionError(name)
    try:
        getattr(onceward, name)
    except AttributeError as error:
        assert isinstance(error, MissingNameError) and isinstance(error, ConfigurationError), name
        assert f"{name} needs " in str(error) and error.name == name, error
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

for name in present:
    assert hasattr(onceward, name), name
members = dict(inspect.getmembers(onceward))
assert set(present) <= set(members), set(present) - set(members)
assert not set(missing) & set(members)
assert set(missing) <= set(dir(onceward))
star = {}
exec("from onceward import *", star)
assert {*present, "__version__"} == set(star) - {"__builtins__"}
assert "class FileSink" in pydoc.plain(pydoc.render_doc(onceward))
from importlib import import_module
for module in map(import_module, ("onceward.types", "onceward.connectors")):
    names = module._NAMES
    missing = {name for name, (_, extra) in names.homes.items() if extra and not hasattr(module, name)}
    assert {"onceward.types": "Form", "onceward.connectors": "format_of"}[module.__name__] in missing
    for name in missing:
        try:
            exec(f"from {module.__name__} import {name}")
        except ImportError as error:
            assert f"{name} needs " in str(error), error
    assert not missing & {name for name, _ in inspect.getmembers(module)}
    star = {}
    exec(f"from {module.__name__} import *", star)
    assert set(star) - {"__builtins__"} == set(names.homes) - missing
    pydoc.render_doc(module)
try:
    from onceward.core import RocksDBBackend
except ImportError as error:
    assert "pip install 'onceward[rocksdb]'" in str(error), error
"""


@pytest.mark.slow
def test_a_bare_install_behaves_as_python_expects() -> None:
    """Programs try an import, ask with hasattr, list members, read help or import all."""
    blocked = modules_of(packages([*chain(*EXTRAS.values())]) - packages(PROJECT["project"]["dependencies"]))
    assert {"pyspark", "confluent_kafka", "psycopg", "rocksdict", "httpx", "redis", "sqlalchemy"} <= blocked
    run = [sys.executable, "-c", f"BLOCKED = {blocked!r}\n{BARE}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


OLD = """
import importlib.metadata as metadata
import onceward
version = metadata.version
metadata.version = lambda package: "3.4.1" if package == "pyspark" else version(package)
def old(*_):
    module = "pyspark.sql.streaming.readwriter"
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)
onceward._lazy.import_module = old
try:
    from onceward import exactly_once
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_package_that_is_too_old_is_told_from_one_that_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"MissingExtraError exactly_once needs pyspark(<5,>=3.5|>=3.5,<5), and pyspark 3.4.1 is installed: "
        r"pip install 'onceward\[spark\]'\n",
        done.stdout,
    ), done.stdout + done.stderr
