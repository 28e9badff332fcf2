"""The fixtures that users import too, and the databases of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward.testing.containers import kafka_container, mariadb_container, postgres_container

from ..sql_kit import maria_database

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from onceward.testing.containers import MariaDbContainer

    from ..sql_kit import MariaDatabase

__all__ = ["kafka_container", "mariadb_container", "postgres_container"]


@pytest.fixture
def new_database(mariadb_container: MariaDbContainer) -> AbstractContextManager[MariaDatabase]:
    return maria_database(mariadb_container.url)
