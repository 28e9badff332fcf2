"""`onceward doctor`: all checks, and those of this machine, of the decision log, and of what targets know of it.

Nothing is changed, but that a folder to check gets a hidden folder for a moment.
"""

from __future__ import annotations

import errno
import os
import platform
import tempfile
from functools import partial
from importlib import metadata
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from onceward.core.checkpoint.recovery import Action, action
from onceward.core.checkpoint.target_check import describe_loss
from onceward.core.contract.connector import connectors
from onceward.core.contract.findings import Finding, Health, failed, ok, skipped, warning
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    LogDamagedError,
    NoDecisionLogError,
    OncewardError,
    text_of,
)
from onceward.core.kit.programs import find_java, java_advice, java_version
from onceward.core.log import Completed, Decide, DirectoryStore, Start
from onceward.core.log.store import local_folder
from onceward.core.log.time_limits import in_time
from onceward.core.log.writer import check_owner
from onceward.core.operations.history import given_up
from onceward.core.operations.log_locations import open_log
from onceward.core.operations.status import LEAST_BYTES
from onceward.core.operations.survey import survey

from .command_advice import advice
from .dev import missing_packages
from .shared_options import targets_of
from .verify.places import check_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from onceward.core.contract.connector import Connector
    from onceward.core.contract.sink import TwoPhaseCommitSink
    from onceward.core.contract.targets import Target
    from onceward.core.log import LogStore, LogView
    from onceward.core.operations.log_locations import Log

    from .shared_options import Access

_OLDEST: Final = {"pyspark": (3, 5), "pandas": (2, 2)}
"""Spark asks for pandas wherever Arrow goes in or out of a Python function."""
_WITHOUT_DATA_SOURCES: Final = "exactly_once works; the formats, read_stream and register need pyspark 4.0 or newer"
_SYSTEM: Final = "operating system"
_LOG: Final = "decision log"
_OWNERSHIP: Final = "ownership"
_STARTS: Final = "starts"
_DECIDED: Final = "decided transactions"
_MANY_STARTS: Final = 3


def run_checks(
    access: Access,
    *,
    places: Sequence[str] = (),
    pipeline: str | None = None,
    store: str | None = None,
    cluster: str | None = None,
) -> list[Finding]:
    """Check this machine, and the services that are named.

    Args:
        access: Access to the systems.
        places: Places that pipelines read and write, such as `kafka:TOPIC` and `files:FOLDER`, whose settings and
            rights are checked.
        pipeline: Pipeline whose rights in its systems are checked, and whose log.
        store: URL of the decision log's store, or the checkpoint folder.
        cluster: Spark's master, whose executors are asked for the same; None: they are not.

    Raises:
        ConfigurationError: A place is not one, or is in a system whose address is not given.
    """
    names: dict[str, list[str]] = {}
    for text in places:
        system, _, name = text.partition(":")
        check_place(text, access)
        names.setdefault(system, []).append(name)

    systems = {name: access.system(name) for name in {*access.addresses, *names}}

    def check(kind: type[Connector]) -> Iterable[Finding]:
        if kind.name in systems:
            return systems[kind.name].check(names.get(kind.name, []), pipeline)
        form = kind.address_form
        return [skipped(kind.name, f"give --at {kind.name}={form} to check it")] if form else []

    return [
        _system(),
        _java(),
        *[_package(name, oldest) for name, oldest in _OLDEST.items()],
        _python(),
        *(findings_of("spark", lambda: [_cluster(cluster, systems.values())]) if cluster is not None else ()),
        *findings_of("sql", lambda: check_log(store, pipeline)),
        ok(
            "commit_timeout",
            f"{COMMIT_TIMEOUT:g} s, with pauses of up to {COMMIT_BACKOFF:g} s, unless the pipeline sets it: for "
            "that long a decided commit is retried before CommitPendingError",
        ),
        *[
            finding
            for kind in connectors().values()
            for finding in findings_of(kind.extra or kind.name, partial(check, kind), is_extra=bool(kind.extra))
        ],
        *_check_names(store, pipeline, access),
    ]


def _check_names(store: str | None, pipeline: str | None, access: Access) -> list[Finding]:
    """Check the pipeline's name in the log and in the targets, under whatever sinks' names it has written."""
    why = "give --store, and --at for its targets"
    if store is not None and access.at:
        try:
            return check_log_and_targets(store, pipeline, targets_of(access))
        except OncewardError as error:
            if isinstance(error.__cause__, ImportError):
                return []  # told already
            why = str(error)
    return [skipped(name, why) for name in (_STARTS, _DECIDED, _OWNERSHIP)]


def findings_of(extra: str, check: Callable[[], Iterable[Finding]], *, is_extra: bool = True) -> Iterator[Finding]:
    """Yield the findings of a check, or a finding that says what it lacks or cannot do.

    Args:
        extra: Name of the extra whose packages the check needs.
        check: Function that makes the check.
        is_extra: True for an extra of onceward, False for the connector of another package.
    """
    try:
        yield from check()
    except OncewardError as error:
        yield failed(extra, str(error), "correct it")
    except ImportError as error:  # a package, or a library that the package needs
        problem = f"it cannot be loaded: {' '.join(text_of(error).split())}"
        if isinstance(error, ModuleNotFoundError):
            problem = f"{error.name} is not installed"
        advice = f"pip install 'onceward[{extra}]'" if is_extra else f"install what the connector {extra} needs"
        yield failed(f"{extra} client", problem, advice)


def _system() -> Finding:
    name = platform.system()
    if name == "Linux":
        return ok(_SYSTEM, name)
    return warning(_SYSTEM, name, "nothing was tested on it: run drivers and executors on Linux")


def verdict(found: Sequence[Finding]) -> str:
    """Return what all findings come to: what can be used now, what does not work, and what was not looked at."""
    broken = [finding.check for finding in found if finding.health is Health.FAILED]
    if broken:
        return f"Not ready: {', '.join(dict.fromkeys(broken))}"
    missing = missing_packages()
    services = "" if missing else " and for local services (onceward dev up)"
    extra = " Local services need: pip install 'onceward[demo]'." if missing else ""
    doubts = sum(finding.health is Health.WARNING for finding in found)
    but = f", with {doubts} warning{'s' * (doubts > 1)}" if doubts else ""
    return f"Ready for Spark{services}{but}.{extra}"


def _java() -> Finding:
    try:
        java = find_java()
        return ok("java", f"Java {java_version(java)} ({java})")
    except ConfigurationError as error:
        problem, _, advice = error.message.partition(f" {java_advice()}")
        return failed("java", problem.rstrip("."), advice.strip(". ") or java_advice())


def _package(name: str, oldest: tuple[int, int]) -> Finding:
    advice = "pip install 'onceward[spark]'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return failed(name, "not installed", advice)
    release = tuple(int(part) for part in version.split(".")[:2])
    if release < oldest:
        return failed(name, f"{version} is older than {oldest[0]}.{oldest[1]}", advice)
    if name == "pyspark" and release < (4, 0):
        return ok(name, f"{version}: {_WITHOUT_DATA_SOURCES}")
    return ok(name, version)


def _python() -> Finding:
    """Check that the executors' Python, if on this machine, has the driver's version and packages."""
    check = "python of the executors"
    try:
        executors = executors_module()
    except ImportError:
        return skipped(check, "pyspark is not installed")
    chosen = os.environ.get("PYSPARK_PYTHON")
    problem = executors.obstacle(chosen or executors.DEFAULT_PYTHON)
    if not problem:
        return ok(check, chosen or executors.DEFAULT_PYTHON)
    if not chosen:
        return warning(
            check, f"{problem}, and PYSPARK_PYTHON is not set", f"unless the program sets it: {executors.PYTHON_ADVICE}"
        )
    return failed(check, problem, executors.PYTHON_ADVICE)


def _cluster(master: str, systems: Iterable[Connector]) -> Finding:
    """Check that executors run onceward, and reach the systems."""
    finding: Finding = executors_module().check_cluster(master, list(systems))
    return finding


def executors_module() -> Any:
    """Import what asks executors, which needs pyspark.

    Raises:
        ImportError: It is not installed.
    """
    from onceward.connectors.spark.write import executors  # noqa: PLC0415 - doctor also looks at what is not installed

    return executors


def check_log(url: str | None, pipeline: str | None) -> Iterator[Finding]:
    """Check a decision log's store, and the standbys of its server; the arguments are those of check_store."""
    yield check_store(url, pipeline)
    if url is not None:
        for kind in connectors().values():
            yield from kind.check_log(url)


def check_store(url: str | None, pipeline: str | None) -> Finding:
    """Check that the store can be read and, where needed, seen by other machines; report the log's state.

    Args:
        url: URL of the decision log's store, or the checkpoint folder; None to skip the check.
        pipeline: Name of the log's pipeline; a folder tells it by itself.
    """
    if url is None:
        return skipped(_LOG, "give --store (or the checkpoint folder) to check it")
    folder, shared = local_folder(url) or (None, False)
    if folder is None and pipeline is None:
        return skipped(_LOG, "a database or bucket holds the logs of several pipelines: give --pipeline too")
    local = urlsplit(url).scheme == "sqlite" or (folder is not None and not shared)
    cannot: Finding | None = None
    try:
        log = open_log(url, pipeline)
        check_owner(log.view, log.pipeline, log.store)
        cannot = in_time(partial(_tried, log.store), log.store.describe())
        facts, local = f"{log.store.describe()}: pipeline {log.pipeline}, {_progress(log.view)}", not log.store.shared
    except NoDecisionLogError as error:
        obstacle = _obstacle(folder) if folder is not None else ""
        if obstacle:
            return failed(_LOG, obstacle, "make it writable for the driver, or choose another store")
        facts = f"no decision log exists yet ({error}). The first start creates it"
    except OncewardError as error:
        refused = isinstance(error, ConfigurationError | EpochConflictError | LogDamagedError)
        away = "make it reachable for the driver, or choose another store"
        return failed(_LOG, str(error), "correct it: the pipeline's next start is refused" if refused else away)
    if cannot is not None or not local:
        return cannot or ok(_LOG, facts)
    advice = "suitable only if the driver always runs on this machine. Otherwise use a database, an object store or a "
    return warning(_LOG, facts, f"{advice}shared folder")


def _tried(store: LogStore) -> Finding | None:
    """Write and sync a file where a log's entries are; return what keeps this user from it."""
    if not isinstance(store, DirectoryStore):
        return None
    try:
        try:
            # A file without a name, so that nothing of the folder changes, and nothing is left behind by a crash.
            handle = os.open(store.path, os.O_TMPFILE | os.O_WRONLY, 0o600)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
                raise
            handle, name = tempfile.mkstemp(prefix=".doctor-", dir=store.path)  # NFS has no files without a name
            os.unlink(name)  # noqa: PTH108 - a text
        try:
            os.write(handle, bytes(LEAST_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        advice = "make room, or make it writable for the driver: until then its pipeline can decide nothing"
        problem = f"{store.describe()}: {LEAST_BYTES} bytes cannot be written and synced: {text_of(error)}"
        return failed(_LOG, problem, advice)
    return None


def _progress(view: LogView) -> str:
    newest = f"newest decided epoch {view.decided}" if view.newest is not None else "nothing decided"
    return f"{newest}, which waits for its commit" if view.undone is not None else newest


def _obstacle(folder: Path) -> str:
    """Return what keeps the driver from making this folder; "" if nothing does."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _starts(view: LogView) -> Finding:
    """Check how often the pipeline was started since its last decision."""
    since = takewhile(lambda entry: not isinstance(entry, Decide | Completed), reversed(view.entries))
    starts = [entry for entry in since if isinstance(entry, Start)]
    if not starts:
        return ok(_STARTS, "none since the newest decision")
    text = f"{len(starts)} since the newest decision, the newest at {starts[0].at}"
    if len({start.writer_id for start in starts}) < _MANY_STARTS:
        return ok(_STARTS, text)
    return warning(
        _STARTS,
        f"{text}, and nothing was decided in between",
        "either the pipeline fails repeatedly, or two jobs run under one name and log and fence each other: run "
        "it only once at a time",
    )


def _decided(log: Log, targets: Sequence[Target]) -> Finding:
    """Check whether decided transactions can still be committed, and whether data was given up."""
    name, skipped_ever = _DECIDED, given_up(log)
    try:
        transactions = [one for one in survey([log], targets, log.pipeline).transactions if one.listed is False]
    except OncewardError as error:
        return skipped(name, str(error))
    lost = [one for one in transactions if action(one.status, one.state) is Action.LOST]
    if lost:
        text = f"{len(lost)} of epoch {lost[0].committable.epoch} were ended otherwise, for example {lost[0].name}"
        return failed(name, text, f"{advice(lost[0].advice)}. Leave names that begin with `onceward:` alone")
    if skipped_ever:
        newest = skipped_ever[-1]
        text = f"{len(skipped_ever)} were given up, the newest at {newest.at} by {newest.who}"
        return warning(name, text, "see `onceward checkpoints`")
    return ok(name, "none waits for its commit" if log.view.undone is None else "wait for their commit")


def check_log_and_targets(url: str, pipeline: str | None, targets: Sequence[Target]) -> list[Finding]:
    """Check the pipeline's decision log and targets.

    Args:
        url: URL of the decision log's store, or the checkpoint folder.
        pipeline: Its name; a folder tells it by itself.
        targets: Targets that have the pipeline's transactions.
    """
    try:
        log = open_log(url, pipeline)
    except NoDecisionLogError:
        return _owned_by(None, pipeline, targets, _searched(url)) if pipeline is not None else []
    except OncewardError:
        return []  # check_store tells
    return [_starts(log.view), _decided(log, targets), *_owned_by(log.view, log.pipeline, targets)]


def _searched(url: str) -> str:
    """Describe where there is no decision log, in a sentence; a path may be meant from another folder."""
    folder, _ = local_folder(url) or (None, False)
    if folder is None:
        return ""
    relative = "" if folder.is_absolute() else f" ({folder} is relative to the current folder)"
    return f". There is none in {folder.absolute()}{relative}"


def _owned_by(view: LogView | None, pipeline: str, targets: Sequence[Target], searched: str = "") -> list[Finding]:
    findings = []
    for target in targets:
        try:
            names = list(target.known(pipeline))
        except OncewardError as error:
            findings.append(skipped(_OWNERSHIP, str(error), target.title))
            continue
        findings += [
            _owned(target.sink(name), Scope(pipeline, name, view.log if view is not None else ""), view, searched)
            for name in names
        ]
        if not names:
            used = ", ".join(sorted(view.claimed)) if view is not None else ""
            elsewhere = f"; the decision log has sinks that have written: {used}" if used else ""
            findings.append(ok(_OWNERSHIP, f"no sink of {pipeline} has written here{elsewhere}", target.title))
    return findings


def _owned(sink: TwoPhaseCommitSink[Any], scope: Scope, view: LogView | None, searched: str) -> Finding:
    """Check whether the target knows the name from another decision log, from a newer state of this one, or no longer.

    Without a log, the first start makes one, which nobody knows yet.
    """
    try:
        remembered = sink.ledger().check_claim(scope, view.progress if view is not None else NOTHING)
    except EpochConflictError as error:
        return failed(
            _OWNERSHIP, error.message + searched, "correct it: the pipeline's next start is refused", sink.name
        )
    except OncewardError as error:
        return skipped(_OWNERSHIP, str(error), sink.name)
    if view is not None and (why := describe_loss(view, sink.name, remembered)):
        return failed(_OWNERSHIP, why, "the pipeline's next start is refused: bring back what is missing", sink.name)
    return ok(_OWNERSHIP, "no other decision log has this name", sink.name)
