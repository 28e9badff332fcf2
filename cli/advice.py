"""The state of a pipeline with the command to use, as `onceward status` and the page show it."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.contract.connector import connectors
from onceward.core.kit.secrets import HIDDEN, without_logins
from onceward.core.log.store import local_folder
from onceward.operations import PipelineState

from .shared_options import either

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.operations.status import NotedSystem
    from onceward.operations import PipelineStatus

_DOCTOR, _LIST = "doctor", "txn list"
_COMMANDS: Final = {
    PipelineState.UNREADABLE: (_DOCTOR, ()),
    PipelineState.WAITING: ("txn commit", ("--yes",)),
    PipelineState.RESTARTING: (_DOCTOR, ()),
    PipelineState.FAILED: (_DOCTOR, ()),
    PipelineState.SILENT: (_LIST, ()),
}
"""Command that helps in each state, with its further options."""
_ADDRESS, _SINKS = "SYSTEM=ADDRESS", "MODULE:NAME"
_STORE, _UNSHOWN = "STORE", "UNSHOWN"
"""Words of a command that a person replaces."""


def with_advice(status: PipelineStatus, url: str, targets: Sequence[str]) -> PipelineStatus:
    """Return a status with the command to use.

    Args:
        status: Status of the pipeline.
        url: URL of the decision log's store.
        targets: Options of the command line that say where the targets are; empty if none were given.
    """
    command, fill_in = _command(status, url, targets)
    place = documentation()
    docs = f"{place}/operations.md#{status.state}" if place else ""
    return msgspec.structs.replace(status, command=command, fill_in=fill_in, docs=docs)


@cache
def documentation() -> str:
    """Return where the documentation is, as the package's metadata says."""
    try:
        lines = metadata.metadata("onceward").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        lines = []
    urls: dict[str, str] = dict(line.split(", ", 1) for line in lines)
    return urls.get("Documentation", "").replace("/tree/", "/blob/")  # GitHub's address of a file


def _command(status: PipelineStatus, url: str, targets: Sequence[str]) -> tuple[str, str]:
    if status.state not in _COMMANDS or not status.needs_somebody:
        return "", ""
    name, more = _COMMANDS[status.state]
    if status.lost:
        name, more = _LIST, ()
    elif status.source:  # where rows come from, which holds none of the pipeline's transactions
        name, more = _DOCTOR, ()
    words = ["onceward", *name.split(), "--store", url or _STORE]
    if status.pipeline and local_folder(url) is None:
        words += ["--pipeline", status.pipeline]
    words_of_targets = list(targets)
    if name == _DOCTOR:  # which finds more if it can ask, and cannot import the pipeline's sinks
        words_of_targets = [] if status.source else _without_sinks(targets)
        named = [one for one in status.systems if one.address or one.place]
        where, fill_in = _where(_not_given(named, words_of_targets), needed=False)
        where = _with_places(where, status.systems, words_of_targets)
    else:
        all_given = "--sinks" in words_of_targets
        where, fill_in = _where(
            [] if all_given else _not_given(status.systems, words_of_targets), needed=not words_of_targets
        )
    return _in_shell([[*words, *words_of_targets, *each, *more] for each in where], fill_in)


def _in_shell(commands: Sequence[Sequence[str]], fill_in: str) -> tuple[str, str]:
    """Return commands as a shell takes them, without secrets, and what must be filled in.

    A secret is replaced in its word before the word is quoted: cut out of a quoted text, it may take a quote along.
    """
    notes = [fill_in] if fill_in else []
    shown = [[_shown(word) for word in words] for words in commands]
    if any(_UNSHOWN in word for words in shown for word in words):
        notes.insert(0, f"replace {_UNSHOWN} with what was given, which holds characters that cannot be shown")
    if any(HIDDEN in word for words in shown for word in words):
        notes.insert(0, f"replace {HIDDEN} with the password, which is not shown")
    command = "; ".join(map(shlex.join, shown))
    if without_logins(command) != command:  # whoever shows it would change it, and so perhaps its quotes
        return "", "the command cannot be shown: its words look like a password"
    return command, without_logins("; ".join(notes))


def _shown(word: str) -> str:
    """Return a word of a command as far as it may be shown."""
    return without_logins(word) if word.isprintable() else _UNSHOWN


def _with_places(
    where: Sequence[Sequence[str]], systems: Sequence[NotedSystem], given: Sequence[str]
) -> list[list[str]]:
    """Add the places that sinks write to, each to the command that asks its system."""
    own = _addresses(given)
    commands = []
    for at in where:
        asked = _addresses(at)
        here = [one for one in systems if one.place and not one.is_source]
        here = [one for one in here if one.system in own or asked.get(one.system) == one.address]
        places = dict.fromkeys(f"{one.system}:{one.place}" for one in here)
        commands.append([*at, *(word for place in places for word in ("--place", place))])
    return commands


def _addresses(words: Sequence[str]) -> dict[str, str]:
    """Return the addresses that options give, by system."""
    pairs = zip(words[::2], words[1::2], strict=True)
    given = (value.partition("=") for option, value in pairs if option == "--at")
    return {system: address for system, _, address in given}


def _not_given(systems: Sequence[NotedSystem], words: Sequence[str]) -> list[NotedSystem]:
    """Return the systems that the options do not name; if they name any, those of which the address is known."""
    given = _addresses(words)
    return [one for one in systems if one.system not in given and (one.decided or not words)]


def _without_sinks(words: Sequence[str]) -> list[str]:
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for option, value in pairs if option != "--sinks" for word in (option, value)]


def _where(targets: Sequence[NotedSystem], *, needed: bool = True) -> tuple[list[list[str]], str]:
    """Return options that say where the targets are, for one command or several, and what must be filled in.

    Only an address that the decision names becomes one of the options. What a note names is told in words: a person can
    judge it, and a command that is copied would trust it with passwords.

    Args:
        targets: Targets of the pipeline.
        needed: True if the command needs a target.
    """
    known = [one for one in targets if one.system in connectors() and one.decided]
    words: list[str] = []
    groups: list[dict[str, list[str]]] = []  # of each command, the options by system
    for one in known:
        at = ["--at", f"{one.system}={one.address}"]
        at += [word for setting in one.settings for word in ("--set", f"{one.system}:{setting}")]
        if any(group.get(one.system) == at for group in groups):
            continue
        group = next((group for group in groups if one.system not in group), None)
        if group is None:
            groups.append(group := {})
        group[one.system] = at
    words += [f"for {_names([one])} add {one.missing}" for one in known if one.missing]
    nowhere = [one for one in targets if one not in known and (one.noted or _has_no_address(one.system))]
    unknown = [one for one in targets if one not in known and one not in nowhere]
    options = [[word for at in group.values() for word in at] for group in groups]
    if not needed:
        options = options or [[]]
        words += [f"add --at {one.system}=ADDRESS for {_names([one])}{_noted([one])}" for one in unknown if one.address]
    elif unknown or not targets:
        options = options or [[]]
        kinds = [connectors().get(one.system) for one in unknown]
        forms = dict.fromkeys(f"{kind.name}={kind.address_form}" for kind in kinds if kind and kind.address_form)
        placeholders = [*forms] if len(unknown) == 1 and forms else [_ADDRESS]
        options[0] += [word for form in placeholders for word in ("--at", form)]
        where = (
            f"{_names(unknown)} {'writes' if len(unknown) == 1 else 'write'} to" if unknown else "the sinks write to"
        )
        forms_of_all = f": {_forms()}" if placeholders == [_ADDRESS] else ""
        words.append(f"replace {placeholders[0]} with the address that {where}{_noted(unknown)}{forms_of_all}")
    if nowhere:
        text = f"{_names(nowhere)} {'writes' if len(nowhere) == 1 else 'write'} somewhere that --at cannot name"
        if options:
            words.append(
                f"{text}: start the pipeline, which handles it, or add --sinks {_SINKS}, the list of its sinks"
            )
        else:
            options = [["--sinks", _SINKS]]
            words.append(f"replace {_SINKS} with the pipeline's own sinks, as Python imports them: {text}")
    return options, "; ".join(words)


def _noted(systems: Sequence[NotedSystem]) -> str:
    """Return what notes say of addresses, in words."""
    addresses = dict.fromkeys(f"{one.system}={one.address}" for one in systems if one.address)
    if not addresses:
        return ""
    return (
        f" (a note beside the log says {', '.join(addresses)}: check it, for any user of that folder can write there)"
    )


def _forms() -> str:
    """Return what --at takes, for each kind of system whose transactions can be found by its address."""
    return either(
        f"{kind.name}={kind.address_form}" for kind in connectors().values() if not _has_no_address(kind.name)
    )


def _has_no_address(system: str) -> bool:
    """Return whether this is a kind of system whose transactions no address finds."""
    kind = connectors().get(system)
    return kind is not None and not kind.lists_transactions


def _names(targets: Sequence[NotedSystem]) -> str:
    """Return the names of targets that are all sinks, or of one source."""
    kind = "source" if targets[0].is_source else "sink"
    return f"{kind}{'s' if len(targets) > 1 else ''} {', '.join(one.name for one in targets)}"
