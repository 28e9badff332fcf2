"""A password in a sink's settings is in nothing that a Spark query shows or leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from .spark_kit import make_table

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]
DRIVER = Path(__file__).with_name("secrets_driver.py")


@pytest.mark.parametrize("how", ["exactly_once", "format"])
def test_a_password_is_in_no_log_line_plan_event_log_checkpoint_or_target(
    how: str, dsn: str, tmp_path: Path, driver_environment: dict[str, str]
) -> None:
    make_table(dsn)
    secret = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    assert isinstance(secret, str)
    done = subprocess.run(
        [sys.executable, DRIVER, how, dsn, tmp_path],
        env={**driver_environment, "ONCEWARD_LOG": "DEBUG"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:].replace(secret, "***")
    places = {"output": done.stdout + done.stderr}
    places |= {str(file): file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()}
    assert any("/events/" in place for place in places)
    assert any("/onceward/" in place for place in places)
    assert "== Physical Plan ==" in places["output"]
    with psycopg.connect(dsn) as look:
        kept = "SELECT coalesce(string_agg(t::text, ''), '') FROM"
        tables = look.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'onceward'").fetchall()
        for (table,) in tables:
            places[f"table {table}"] = str(look.execute(f"{kept} onceward.{table} AS t").fetchone())
    shown = [(place, line) for place, text in places.items() for line in text.splitlines() if secret in line]
    assert [(place, line.replace(secret, "SECRET")[:300]) for place, line in shown] == []
