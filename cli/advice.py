"""The state of a pipeline with the command to use, as `onceward status` and the page show it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.log.store import local_folder
from onceward.operations import PipelineState, PipelineStatus

if TYPE_CHECKING:
    from .operate import Search

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


def advised(told: PipelineStatus, url: str, search: Search) -> AdvisedStatus:
    """Return a status with the command to use for a pipeline whose log is at this URL."""
    return AdvisedStatus(**msgspec.structs.asdict(told), command=_command(told, url, search))


def _command(told: PipelineStatus, url: str, search: Search) -> str:
    if told.state not in _COMMANDS:
        return ""
    name, asks, more = _COMMANDS[told.state]
    words = ["onceward", *name.split(), "--store", url or "STORE"]
    if told.pipeline and local_folder(url) is None:
        words += ["--pipeline", told.pipeline]
    return shlex.join([*words, *(_targets(search) if asks else ()), *more])


def _targets(search: Search) -> list[str]:
    words = [word for at in search.at or () for word in ("--at", at)]
    words += [word for setting in search.set_ or () for word in ("--set", setting)]
    words += ["--sinks", search.sinks] if search.sinks is not None else []
    return words or ["--at", "SYSTEM=ADDRESS"]
