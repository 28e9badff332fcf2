"""Names of files and the output of commands are UTF-8 whatever the locale is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAM = """
import sys
import pyarrow as pa
from onceward import FileSink, FileSource
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.log import DirectoryStore, EpochInput
from onceward.core.contract.transaction import Acknowledgement

format_, folder, log, number = sys.argv[1:]
epoch = int(number)
sink = FileSink("files", folder, format=format_, partition_by=["country"])
coordinator = Coordinator("orders", DirectoryStore(log), [sink])
coordinator.open()
about = EpochInput(query="q", start=[str(epoch)], end=[str(epoch + 1)])
coordinator.admit(epoch, about)
attempt = SubtaskEpoch(sink, coordinator.context("files", epoch, subtask=0))
attempt.write(pa.record_batch({"n": [epoch, 7], "country": ["\\u00d6sterreich", "\\u65e5\\u672c"]}))
committable = attempt.pre_commit()
coordinator.commit(
    epoch,
    [Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=("files",), committables=(committable,))],
    about,
)
schema = pa.schema([("n", pa.int64()), ("country", pa.string())])
source = FileSource(folder, format=format_, schema=schema, bounded=True)
pieces = [piece.batch for split in source.splits({}, source.end()) for piece in source.read(split)]
print(ascii(sorted((row["n"], row["country"]) for batch in pieces for row in batch.to_pylist())))
"""


def environment(**more: str) -> dict[str, str]:
    dropped = ("LC_", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")
    return {key: text for key, text in os.environ.items() if not key.startswith(dropped)} | more


COMMAND = ("-c", "from onceward.cli import main; main()")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="session")
def latin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python encodes names in Latin-1."""
    folder = tmp_path_factory.mktemp("locales")
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US")], capture_output=True, check=False
    )
    if made.returncode > 1:  # 1 is a warning
        return ASCII  # this machine has no sources of locales
    return {"LC_ALL": "en_US", "LOCPATH": str(folder), "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(arguments: Sequence[str], **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment(**env), capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl", "arrow"])
def test_partitions_have_the_same_names_in_every_locale(tmp_path: Path, format_: str, latin: dict[str, str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    folder, log = tmp_path / "out", tmp_path / "log"
    rows: list[tuple[int, str]] = []
    for number, env in enumerate((ASCII, {"LC_ALL": "C.UTF-8"}, latin)):
        rows += [(number, "Österreich"), (7, "日本")]
        assert run([str(program), format_, str(folder), str(log), str(number)], **env).strip() == ascii(sorted(rows))
    names = {os.fsencode(path.name) for path in folder.iterdir() if not path.name.startswith("_")}
    assert names == {"country=Österreich".encode(), "country=日本".encode()}
    if format_ == "parquet":
        table = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()
        assert sorted(zip(table["n"].to_pylist(), table["country"].to_pylist(), strict=True)) == sorted(rows)
    for env in (ASCII, latin, {"LC_ALL": "C.UTF-8"}):
        [told] = json.loads(run([*COMMAND, "verify", str(log), "--target", f"files:{folder}", "--json"], **env))
        assert told["verdict"] == "proven"


@pytest.mark.parametrize("env", [ASCII, {**ASCII, "PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii"}])
def test_help_is_utf8_in_every_locale(env: dict[str, str]) -> None:
    assert "→" in run([*COMMAND, "--help"], **env)
