"""On a pyspark without data sources in Python (3.5), all that needs none of them works, and the rest says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.cli import doctor
from onceward.core.contract.findings import Health

ROOT = Path(__file__).parents[1]
OLDER = """
import sys
import pyspark
sys.modules["pyspark.sql.datasource"] = None
pyspark.__version__ = "3.5.9"
from onceward import KafkaSource, ProgressListener, SequenceSource, exactly_once, explain, read_stream, register
from onceward.connectors.spark import query_description
from onceward.connectors.spark.formats.formats import formats
from onceward.core.errors import ConfigurationError
print(*(kind.format_name for kind in formats()))
source = KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["orders"])
for call in (lambda: register(None), lambda: read_stream(None, source)):
    try:
        call()
    except ConfigurationError as error:
        print(error)
"""


def test_without_data_sources_in_python_the_rest_is_imported_and_what_needs_them_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    formats, register, read_stream = done.stdout.splitlines()
    assert {"onceward", "onceward-kafka", "onceward-files"} <= set(formats.split())
    needs = "needs pyspark 4.0 or newer, which has data sources in Python, and pyspark 3.5.9 is installed"
    assert register.startswith(f"register {needs}")
    assert "exactly_once(df, sink)" in register
    assert read_stream.startswith(f"read_stream {needs}")
    assert "spark.readStream.format(…)" in read_stream


@pytest.mark.parametrize(
    ("version", "health", "found"),
    [
        ("3.4.4", Health.FAILED, "3.4.4 is older than 3.5"),
        ("3.5.9", Health.OK, "3.5.9: exactly_once works; the formats, read_stream and register need pyspark 4.0"),
        ("4.0.1", Health.OK, "4.0.1"),
    ],
)
def test_doctor_says_what_the_installed_pyspark_can_do(
    version: str, health: Health, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda _: version)
    finding = doctor._package("pyspark", doctor._OLDEST["pyspark"])
    assert finding.health is health
    assert finding.found.startswith(found)
    assert (": " in finding.found) == version.startswith("3.5")
