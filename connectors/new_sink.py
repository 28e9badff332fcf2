"""`onceward new-sink NAME`: a working skeleton of an own sink, and its exam."""

from __future__ import annotations

import keyword
from string import Template
from typing import TYPE_CHECKING, Final

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

SINK: Final = Template('''\
"""$class: a sink that works, to be made into one for your target.

Here the target is a folder: each epoch's rows of a subtask become one file of JSON lines. What you replace is marked.
The order of calls, and what each must guarantee, stands in onceward.sinks.TwoPhaseCommitSink.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from onceward.core.errors import EpochConflictError
from onceward.core.names import parse_transaction_name
from onceward.sinks import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Scope,
    TwoPhaseCommitSink,
    WriteContext,
)


class Transaction:
    """What is being written. YOURS: a connection, a session, a buffer."""

    def __init__(self, context: WriteContext, path: Path) -> None:
        self.context = context
        self.path = path
        self.file = path.open("x")
        self.rows = 0


class $class(TwoPhaseCommitSink[Transaction]):
    """YOURS: what it writes, and where.

    Args:
        name: Unique in its pipeline.
        folder: Where the files go.
    """

    def __init__(self, name: str, folder: str | Path) -> None:
        super().__init__(name)
        self.folder = Path(folder)  # configuration only: the object travels between processes

    def begin(self, context: WriteContext) -> Transaction:
        """YOURS: open a transaction under a name that says whose it is, and that is never used again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return Transaction(context, self._pending(str(context.transaction_name())))

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """YOURS: write rows inside it; nothing may show."""
        transaction.file.writelines(json.dumps(row, default=str) + "\\n" for row in batch.to_pylist())
        transaction.rows += batch.num_rows

    def pre_commit(self, transaction: Transaction) -> Committable:
        """YOURS: flush and prepare. From here on the data must survive this process and the target's restart."""
        transaction.file.flush()
        os.fsync(transaction.file.fileno())
        transaction.file.close()
        context = transaction.context
        return Committable(
            kind="$name",
            pipeline=context.pipeline,
            sink=context.sink,
            log=context.log,
            writer=context.writer,
            epoch=context.epoch,
            subtask=context.subtask,
            attempt=context.attempt,
            transaction=transaction.path.stem,
            rows=transaction.rows,
        )

    def discard(self, transaction: Transaction) -> None:
        """YOURS: roll back what was not prepared."""
        transaction.file.close()
        transaction.path.unlink(missing_ok=True)

    def commit(self, committable: Committable) -> CommitOutcome:
        """YOURS: make it show. Called again after a crash, in any process; a lost answer is resolved by asking."""
        pending, final = self._pending(committable.transaction), self._final(committable.transaction)
        try:
            pending.rename(final)  # atomic: of a commit and an abort at once, one finds nothing
        except FileNotFoundError:
            if final.exists():
                return CommitOutcome(CommitStatus.ALREADY_COMMITTED)
            return CommitOutcome(CommitStatus.LOST, f"{pending} is gone")
        self._sync()
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        """YOURS: end exactly this transaction without a trace, if it is not committed."""
        try:
            self._pending(committable.transaction).unlink()
        except FileNotFoundError:
            if self._final(committable.transaction).exists():
                return AbortOutcome(AbortStatus.COMMITTED)
            return AbortOutcome(AbortStatus.UNKNOWN, "there is no trace of it")
        return AbortOutcome(AbortStatus.ABORTED)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """YOURS: what is open or prepared under exactly these names: parse them, compare no prefix."""
        for path in sorted(self.folder.glob("*.pending")):
            name = parse_transaction_name(path.stem)
            if name is not None and (name.scope.pipeline, name.scope.sink) == (scope.pipeline, scope.sink):
                yield Committable(
                    kind="$name",
                    pipeline=scope.pipeline,
                    sink=scope.sink,
                    log=name.scope.log,
                    writer=name.start,
                    epoch=name.epoch,
                    subtask=name.subtask,
                    attempt=name.attempt,
                    transaction=path.stem,
                )

    def claim(self, scope: Scope) -> None:
        """YOURS: remember in the target which decision log stands behind these names; refuse another one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        claim = self._claim(scope)
        if not claim.exists():
            claim.write_text(scope.log)
        elif claim.read_text() != scope.log:
            raise EpochConflictError(f"{self.folder} knows this pipeline from another decision log: rewind, or rename")

    def release(self, scope: Scope) -> None:
        """YOURS: forget that, because somebody goes back on purpose."""
        self._claim(scope).unlink(missing_ok=True)

    def _pending(self, transaction: str) -> Path:
        return self.folder / f"{transaction}.pending"

    def _final(self, transaction: str) -> Path:
        return self.folder / f"{transaction}.jsonl"

    def _claim(self, scope: Scope) -> Path:
        return self.folder / f"{scope.pipeline}:{scope.sink}.claim"

    def _sync(self) -> None:
        """A new name must survive a power cut before anybody says COMMITTED."""
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
''')

EXAM: Final = Template('''\
"""The exam of $class: every case that a sink can be asked by itself. Run it with pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onceward.testing.conformance import SinkConformance, Subject

from $name import $class


class Test$class(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        def read() -> list[int]:
            """YOURS: the numbers (column n) of all rows that show now."""
            lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
            return [json.loads(line)["n"] for line in lines]

        return Subject(make=lambda: $class("mine", tmp_path), read=read)
''')


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write NAME.py and test_NAME.py.

    Args:
        name: Of the module, for example `billing_sink`; its class is called `BillingSink`.
        folder: Where to.

    Returns:
        The two files.

    Raises:
        ConfigurationError: The name cannot be a module's, or a file is there already.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or not name[0].isalpha():
        raise ConfigurationError(f"{name!r} cannot be a module's name: give something like billing_sink")
    words = {"name": name, "class": "".join(part.capitalize() for part in name.split("_"))}
    texts = {folder / f"{name}.py": SINK, folder / f"test_{name}.py": EXAM}
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)} is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in texts.items():
        path.write_text(template.substitute(words))
    return list(texts)
