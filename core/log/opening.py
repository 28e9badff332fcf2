"""Open a store by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import ConfigurationError, NoDecisionLogError
from .directory import DirectoryStore
from .objects import CONDITIONAL_PUT, ObjectStore

if TYPE_CHECKING:
    from .store import LogStore

_SQL = ("sqlite", "postgresql", "mariadb", "mysql")


IN_CHECKPOINT = "onceward"
"""Folder of the decision log inside a Spark checkpoint, so that it is copied and moved with it."""


def open_store(url: str, *, pipeline: str = "default", existing: bool = False) -> LogStore:
    """Open the store of one pipeline's decision log.

    Args:
        url: A path or `file:///…` (local directory; add `?shared=true` for one that all machines see), a SQLAlchemy
            URL (`sqlite:///…`, `postgresql+psycopg://…`), or an object store that fsspec knows (`s3://bucket/prefix`).
        pipeline: Name of the pipeline; stores other than a directory keep each pipeline apart by it.
        existing: Only look: nothing is made or probed, and what is not there is an error.

    Raises:
        NoDecisionLogError: There is none, and `existing` is set.
        ConfigurationError: The URL names nothing that can hold a decision log.
        StoreError: The store did not answer.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.split("+")[0]
    if scheme in ("", "file"):
        shared = parse_qs(parts.query).get("shared", ["false"])[-1].lower() == "true"
        path = unquote(parts.path) if scheme else url
        if existing and not Path(path).is_dir():
            raise NoDecisionLogError(f"no such folder: {path}")
        return DirectoryStore(path, shared=shared)
    if scheme in _SQL:
        from .sql import SqlStore  # noqa: PLC0415 - SQLAlchemy is an extra

        return SqlStore(url, pipeline=pipeline, existing=existing)
    if scheme in CONDITIONAL_PUT:
        return _open_objects(url, pipeline, existing=existing)
    raise ConfigurationError(
        f"{scheme}:// cannot hold a decision log: give a directory, a SQLAlchemy URL, or one of "
        f"{sorted(CONDITIONAL_PUT)}"
    )


def _open_objects(url: str, pipeline: str, *, existing: bool) -> ObjectStore:
    try:
        import fsspec  # noqa: PLC0415 - an extra

        filesystem, prefix = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ConfigurationError(f"{url} needs another package: pip install 'onceward[objects]' and {error}") from error
    return ObjectStore(filesystem, f"{prefix.rstrip('/')}/{pipeline}", probe=not existing)
