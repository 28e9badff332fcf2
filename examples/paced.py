"""A source for the engine's examples: it gives rows only as far as it is told."""

from typing import Any

from onceward.sources import SequenceSource


class Paced(SequenceSource):
    """Rows of one unit, one at a time, up to a limit that `go_to` moves."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows, batch_rows=1)
        self.rows = len(rows)
        self.limits = {"0": 0}
        self.given = {"0": 0}

    @property
    def bounded(self) -> bool:
        return self.limits["0"] >= self.rows

    def latest(self, position: Any, limit: int | None = None, until: Any = None) -> Any:
        self.given.update(position)
        return {unit: max(at, min(self.rows, self.limits[unit])) for unit, at in position.items()}

    def go_to(self, row: int) -> None:
        """Give rows up to here."""
        self.limits["0"] = row
