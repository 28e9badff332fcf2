"""The conformance suite for OrdersSource: run it with pytest, in this folder."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from custom_source import OrdersSource

from onceward.testing.conformance import SourceConformance, SourceUnderTest

SHOPS = ("north", "south", "east")


def put(path: str, numbers: list[int], shops: tuple[str, ...] = SHOPS) -> None:
    """Add an order for each number, to one shop after the other."""
    count = "SELECT count(*) FROM orders WHERE shop = ?"
    with closing(sqlite3.connect(path)) as connection, connection:
        for at, n in enumerate(numbers):
            shop = shops[at % len(shops)]
            connection.execute(f"INSERT INTO orders SELECT ?, ({count}), ?", (shop, shop, n))


class TestOrdersSource(SourceConformance):
    """Every case that a source can be asked by itself."""

    @pytest.fixture
    def source_under_test(self, tmp_path: Path) -> SourceUnderTest:
        path = str(tmp_path / "orders.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE orders (shop TEXT, number INTEGER, n INTEGER, PRIMARY KEY (shop, number))")

        def lose() -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("DELETE FROM orders")

        return SourceUnderTest(
            make=lambda: OrdersSource(path, bounded=True, batch_rows=10),
            append=lambda numbers: put(path, numbers),
            lose=lose,
            grow=lambda numbers: put(path, numbers, ("new",)),
        )
