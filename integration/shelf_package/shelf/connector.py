"""What onceward's commands know of shelves beyond the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.connectors import Connector, Finding, Place, Reread, RereadPiece, Target, failed, ok

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onceward.core.contract.names import Scope
    from onceward.sinks import Sink
    from onceward.sources import ResettableSource


class ShelfConnector(Connector):
    """A SQLite file with shelves."""

    name = "shelf"
    sink = "shelf.sink:ShelfSink"
    address_form = "FILE"
    place_form = "SHELF"

    def target(self) -> Target:
        """List and end what is prepared in the file."""
        from .database import transaction
        from .sink import KIND, ShelfSink, prepared

        def known(pipeline: str) -> list[str]:
            with transaction(self.address) as connection:
                return [s for (s,) in connection.execute("SELECT sink FROM owners WHERE pipeline = ?", [pipeline])]

        return Target(
            title=f"shelves in {self.address}",
            names=lambda _: {(one.pipeline, one.sink) for one in prepared(self.address)},
            known=known,
            holds=lambda kind, _: kind == KIND,
            sink=lambda name: ShelfSink(name, self.address),
        )

    def place(self, name: str) -> Shelf:
        """Return a shelf."""
        return Shelf(self.address, name)

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterator[Finding]:  # noqa: ARG002
        """Check that shelves are there and unlocked."""
        from .database import transaction

        with transaction(self.address) as connection:
            there = dict(connection.execute("SELECT name, locked FROM shelves").fetchall())
        yield ok("shelves", f"{len(there)} in {self.address}")
        for name in names:
            if name not in there:
                yield failed("shelf", "it does not exist", "create it", name)
            elif there[name]:
                yield failed("shelf", "it is locked", "unlock it", name)
            else:
                yield ok("shelf", "it is there, and not locked", name)

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,
    ) -> Iterable[Finding]:
        """Check the shelves of sinks."""
        from .sink import ShelfSink

        for sink in sinks:
            if isinstance(sink, ShelfSink):
                yield from cls(sink.file).check([sink.shelf], pipeline)


class Shelf(Place):
    """The items of a shelf."""

    def __init__(self, file: str, shelf: str) -> None:
        super().__init__(f"shelf:{shelf}")
        self.file, self.shelf = file, shelf

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """Read all items; each shows the transaction that put it there."""
        import json

        import pyarrow as pa

        from onceward.core.contract.names import parse_transaction_name

        from .database import transaction

        with transaction(self.file) as connection:
            query = "SELECT owner, item, rowid FROM items WHERE shelf = ?"
            found = connection.execute(query, [self.shelf]).fetchall()
        rows = pa.Table.from_pylist([json.loads(item) for _, item, _ in found])
        rows = rows.select([name for name in rows.column_names if not columns or name in columns]).combine_chunks()
        owners = [owner for owner, _, _ in found]
        names = {owner: parse_transaction_name(owner) for owner in owners}
        epochs = {owner: name.epoch for owner, name in names.items() if name is not None and name.scope == scope}
        pieces = [RereadPiece(batch, owners, [f"item {n}" for _, _, n in found]) for batch in rows.to_batches()]
        return Reread(iter(pieces), epochs, rows.schema, lambda mark: mark not in epochs)
