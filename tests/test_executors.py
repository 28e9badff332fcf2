"""What keeps executors from running our code is found out before Spark fails with another message."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward import exactly_once
from onceward.connectors.spark.write.executors import obstacle, warn_of_python
from onceward.core.errors import ConfigurationError


def session(python: str, master: str = "local[2]") -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=python))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter without packages."""
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o700)
    return program


def test_this_interpreter_is_fine_under_any_of_its_names() -> None:
    folder = Path(sys.executable).parent
    for name in ("python", "python3"):
        if (folder / name).exists():
            assert obstacle(str(folder / name)) == ""


def test_an_interpreter_without_the_packages_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle.cache_clear()
    assert "No module named 'onceward'" in obstacle(str(bare))
    monkeypatch.setenv("PATH", f"{bare.parent}{os.pathsep}{os.environ['PATH']}")
    assert str(bare) in obstacle("python3")
    assert obstacle("/nowhere/python") == "there is no /nowhere/python"


@pytest.mark.parametrize("package", ["msgspec", "numpy", "pyarrow"])
def test_an_interpreter_without_one_package_that_tasks_need_is_named(package: str, tmp_path: Path) -> None:
    program = tmp_path / "python3"
    without = f"import sys; sys.modules['{package}'] = None; $2"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{without}"\n')
    program.chmod(0o700)
    assert package in obstacle(str(program)).partition("cannot run onceward")[2]


def test_a_warning_says_what_to_set(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_python(session(str(bare)))
    [record] = caplog.records
    assert f"PYSPARK_PYTHON={sys.executable}" in record.getMessage()


@pytest.mark.parametrize(("python", "master"), [(sys.executable, "local[2]"), ("/nowhere/python", "spark://host:7077")])
def test_there_is_none_if_it_fits_or_cannot_be_known(
    python: str, master: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_python(session(python, master))
    assert caplog.records == []


def test_what_is_no_sink_is_named() -> None:
    frame: Any = SimpleNamespace(isStreaming=True)
    sinks: Any = ["paid", 3]
    with pytest.raises(ConfigurationError, match="given: str, int"):
        exactly_once(frame, *sinks, pipeline="p")
