"""`onceward new-sink`: what it writes is the example, and passes the conformance suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.cli.main import write_skeleton
from onceward.core.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
NOT_APPLICABLE = {
    "no SinkUnderTest.misfit",
    "no SinkUnderTest.refused",
    "no SinkUnderTest.restart",
    "no SinkUnderTest.secret",
    "the sink does not define inspect_many",
    "the sink does not take select",
    "the sink does not take where",
    "the sink lists its own transactions only",
    "the target cannot tell how far a decision log had come",
    "the target never ends a transaction by itself (transaction_timeout is None)",
}
MAIN = "from onceward.cli.main import main; main()"


def test_the_skeleton_passes_the_conformance_suite(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(tmp_path)])}
    made = subprocess.run(
        [sys.executable, "-c", MAIN, "new-sink", "billing_sink", "--folder", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"billing_sink.py", "test_billing_sink.py"}
    suite = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            str(tmp_path),
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout[-3000:]
    lines, checklist = suite.stdout.split("checklist for the author")
    skipped = {line.partition(": ")[2].split(":")[0] for line in lines.splitlines() if line.startswith("test_b")}
    assert skipped == NOT_APPLICABLE
    assert "[ ] restart is not given: that what is prepared and committed survives a restart of the tar" in checklist


@pytest.mark.slow
def test_the_sink_and_its_connector_are_a_package_whose_suites_pass(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    write_skeleton("billing_sink", source)
    assert {path.name for path in write_skeleton("billing_sink", source, connector=True)} == {
        "billing_sink_connector.py",
        "test_billing_sink_connector.py",
        "pyspark_onceward_billing_sink.py",
        "pyproject.toml",
    }
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(installed), str(source)], check=True)
    tests = tmp_path / "tests"
    tests.mkdir()
    (source / "test_billing_sink_connector.py").rename(tests / "test_billing_sink_connector.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(installed)])}
    suite = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:randomly"],
        env=environment,
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout[-3000:] + suite.stderr
    found = (
        "from onceward.connectors.spark.formats.formats import formats; print([one.format_name for one in formats()])"
    )
    shown = subprocess.run([sys.executable, "-c", found], env=environment, capture_output=True, text=True, check=True)
    assert "onceward-billing-sink" in shown.stdout


def test_the_skeleton_is_the_example_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "custom_sink", raising=False)  # another test may have imported the example
    for path in write_skeleton("custom_sink", tmp_path, connector=True):
        text = path.read_text().replace("CustomSink", "JsonLinesSink").replace("custom-sink", "json-lines")
        text = text.replace("CustomConnector", "JsonLinesConnector").replace("CustomRows", "JsonLinesRows")
        text = text.replace("custom_sink_connector", "custom_connector")
        example = ROOT / "examples" / path.name.replace("custom_sink_connector", "custom_connector")
        assert not path.name.endswith("_connector.py") or text == example.read_text()
        assert path.name not in {"custom_sink.py", "test_custom_sink.py"} or text == example.read_text()


@pytest.mark.parametrize("name", ["Billing", "my-sink", "class", "_x", "1st", ""])
def test_a_name_that_is_no_modules_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="billing_sink"):
        write_skeleton(name, tmp_path)


@pytest.mark.parametrize("name", ["json", "pytest", "onceward"])
def test_the_name_of_an_installed_module_is_refused(tmp_path: Path, name: str) -> None:
    """Beside a test, `json.py` is imported wherever something imports `json`."""
    with pytest.raises(ConfigurationError, match="installed module"):
        write_skeleton(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write_skeleton("mine", tmp_path)
    before = (tmp_path / "mine.py").read_text()
    with pytest.raises(ConfigurationError, match=r"already exist\. Nothing was written"):
        write_skeleton("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == before
