"""What operators' commands print, word by word: `tests/golden/` holds it for systems that are always the same.

Write the files anew, and read the difference, with `pytest tests/test_golden.py --update-golden`.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceward.cli.main import main

from .golden_kit import Scene, compare, normalized

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "txn-list": "txn list --store orders --sinks jobs:ORDERS --json",
    "txn-list-as-text": "txn list --store orders --sinks jobs:ORDERS",
    "txn-list-in-doubt": "txn list --store doubt --sinks jobs:DOUBT --json",
    "txn-list-lost": "txn list --store lost --sinks jobs:LOST --json",
    "txn-list-foreign": "txn list --store foreign --sinks jobs:FOREIGN --json",
    "txn-list-outdated": "txn list --store copy --sinks jobs:ORDERS --json",
    "txn-list-without-a-log": "txn list --pipeline orders --sinks jobs:ORDERS --json",
    "txn-list-of-another-target": "txn list --store orders --sinks jobs:FILES --json",
    "txn-list-unanswered": "txn list --store orders --sinks jobs:AWAY --json",
    "txn-list-without-a-target": "txn list --store orders --json",
    "txn-inspect": "txn inspect {decided} --store orders --sinks jobs:ORDERS --json",
    "txn-inspect-as-text": "txn inspect {decided} --store orders --sinks jobs:ORDERS",
    "txn-inspect-unknown": "txn inspect unknown --store orders --sinks jobs:ORDERS --json",
    "txn-commit": "txn commit --store orders --sinks jobs:ORDERS",
    "txn-commit-nothing": "txn commit --store doubt --sinks jobs:DOUBT",
    "txn-commit-lost": "txn commit --store lost --sinks jobs:LOST",
    "txn-commit-skipping": "txn commit --store lost --sinks jobs:LOST --skip-lost 'the table was emptied'",
    "txn-commit-outdated": "txn commit --store copy --sinks jobs:ORDERS",
    "txn-commit-elsewhere": "txn commit --store orders --sinks jobs:DOUBT",
    "txn-abort": "txn abort --store doubt --sinks jobs:DOUBT",
    "txn-abort-one": "txn abort {in-doubt} --store doubt --sinks jobs:DOUBT",
    "txn-abort-decided": "txn abort {decided} --store orders --sinks jobs:ORDERS",
    "txn-abort-foreign": "txn abort {foreign} --store foreign --sinks jobs:FOREIGN",
    "txn-abort-orphaned": "txn abort {foreign} --orphaned --pipeline foreign --sinks jobs:FOREIGN",
    "txn-abort-orphaned-without-names": "txn abort --orphaned --pipeline foreign --sinks jobs:FOREIGN",
    "checkpoints": "checkpoints --store orders --json",
    "checkpoints-as-text": "checkpoints --store orders --sinks jobs:ORDERS",
    "checkpoints-given-up": "checkpoints --store lost --json",
    "checkpoints-given-up-as-text": "checkpoints --store lost --sinks jobs:LOST",
    "checkpoints-of-the-engine": "checkpoints --store engine/log --json",
    "checkpoints-of-the-engine-as-text": "checkpoints --store engine/log",
    "checkpoints-no-epoch": "checkpoints --store foreign",
    "status": "status --store orders --sinks jobs:ORDERS --json",
    "status-as-text": "status --store orders --store doubt --store engine",
    "status-of-another-pipeline": "status --store orders --pipeline another",
    "status-lost": "status --store lost --sinks jobs:LOST --json",
    "status-no-log": "status --store nowhere",
    "repair-log": "repair-log --store orders",
    "verify-files": "verify orders --target files=files:orders-files --json",
    "verify-files-as-text": "verify orders --target files=files:orders-files",
    "verify-a-table": "verify orders --target table=sql:numbers {at}orders.db --json",
    "verify-epochs": "verify orders --target files=files:orders-files --epochs 1:1 --json",
    "verify-a-table-of-a-stopped-pipeline": "verify doubt --target table=sql:numbers {at}doubt.db --json",
    "verify-another-table": "verify doubt --target table=sql:numbers {at}orders.db --json",
    "verify-other-files": "verify orders --target files=files:doubt-files",
    "verify-by-key": "verify --source files:orders-files --target sql:numbers {at}orders.db --key n --json",
    "verify-by-key-differs": "verify --source files:orders-files --target files:doubt-files --key n --json",
    "verify-by-key-as-text": "verify --source files:orders-files --target files:doubt-files --key n",
    "verify-no-place": "verify orders --target files=nowhere",
    "doctor": "doctor --json",
    "doctor-as-text": "doctor --store orders --place files:orders-files",
    "doctor-of-a-query": "doctor --store orders --query programs:orders --json",
    "doctor-of-another-pipeline": "doctor --store orders --pipeline another --json",
    "doctor-no-log": "doctor --store nowhere --pipeline orders --json",
    "explain": "explain programs:orders --json",
    "explain-as-text": "explain programs:orders",
    "explain-outdated": "explain programs:outdated --json",
    "explain-forgotten": "explain programs:forgotten --json",
    "explain-clashing": "explain programs:clashing --no-look --json",
    "explain-nothing": "explain programs:nothing --json",
    "savepoint-list": "savepoint list savepoints --json",
    "savepoint-list-as-text": "savepoint list savepoints",
    "savepoint-list-one": "savepoint list savepoints/moving --json",
    "savepoint-list-nothing": "savepoint list nowhere --json",
}
"""Each changes nothing: what has a --yes is a dry run here."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("golden"))
    before = scene.contents()
    yield scene
    assert scene.contents() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_printed(
    scene: Scene,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    command = COMMANDS[name].format_map({"at": "--at sql=sqlite:///", **scene.named})
    monkeypatch.setattr(sys, "argv", ["onceward", *shlex.split(command)])
    monkeypatch.setenv("JAVA_HOME", str(scene.folder / "jdk"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for module in ("jobs", "programs"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with chdir(scene.folder), pytest.raises(SystemExit) as end:
        main()
    printed = capfd.readouterr()
    text = f"$ onceward {command}\n{printed.out}"
    text += f"--- standard error\n{printed.err}" if printed.err else ""
    compare(GOLDEN / f"{name}.txt", normalized(f"{text}--- exit code {end.value.code or 0}\n", scene.folder), request)


def test_each_golden_file_is_of_a_command() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(COMMANDS)
