"""The state of a pipeline with the command to use, as `onceward status` and the page show it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.kit.secrets import without_logins
from onceward.core.log.store import local_folder
from onceward.operations import History, PipelineState, PipelineStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    PipelineState.UNREADABLE: ("doctor", False, ()),
    PipelineState.WAITING: ("txn commit", True, ("--yes",)),
    PipelineState.RESTARTING: ("doctor", False, ()),
    PipelineState.FAILED: ("doctor", False, ()),
    PipelineState.SILENT: ("txn list", True, ()),
}
"""What helps in a state, whether it asks the targets, and its other options."""


class AdvisedStatus(PipelineStatus, frozen=True, kw_only=True):
    """State of a pipeline with the command to use, as `--json` shows it."""

    command: str = ""
    """The command that does what is advised, or shows more; empty if nothing needs to be done."""


class ShownHistory(History, frozen=True, kw_only=True):
    """The epochs and losses of a pipeline with its state, as `onceward checkpoints --json` shows them."""

    status: AdvisedStatus


def advised(told: PipelineStatus, url: str, targets: Sequence[str]) -> AdvisedStatus:
    """Return a status with the command to use.

    Args:
        told: The status.
        url: URL of the decision log's store.
        targets: Options of the command line that say where the targets are; empty if none were given.
    """
    return AdvisedStatus(**msgspec.structs.asdict(told), command=_command(told, url, targets))


def _command(told: PipelineStatus, url: str, targets: Sequence[str]) -> str:
    if told.state not in _COMMANDS:
        return ""
    name, asks, more = _COMMANDS[told.state]
    if told.lost:
        name, asks, more = "txn list", True, ()
    elif told.source:  # where rows come from, which holds none of the pipeline's transactions
        name, asks, more = "doctor", False, ()
    words = ["onceward", *name.split(), "--store", url or "STORE"]
    if told.pipeline and local_folder(url) is None:
        words += ["--pipeline", told.pipeline]
    words += (targets or ["--at", "SYSTEM=ADDRESS"]) if asks else []
    return without_logins(shlex.join([*words, *more]))
