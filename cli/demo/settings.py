"""What the demo's processes tell each other, as one JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the driver process and the checker need to know."""

    bootstrap_servers: str
    dsn: str
    jdbc_url: str
    home: str
    orders: int
    users: int
    seed: int
    partitions: int = 4
    orders_per_batch: int = 8000
    source_topic: str = "orders"
    sink_topic: str = "order_totals"
    sink_table: str = "order_totals"
    contrast_topic: str = "order_totals_at_least_once"
    contrast_table: str = "order_totals_at_least_once"

    @property
    def events(self) -> Path:
        """File to which the driver appends what it has done, one JSON object a line."""
        return Path(self.home) / "events.jsonl"

    def checkpoint(self, query: str) -> str:
        """Checkpoint folder of a query."""
        return str(Path(self.home) / "checkpoints" / query)

    def save(self, path: Path) -> None:
        """Write it for the driver process; readable by its owner only, for it holds the database's password."""
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> DemoSettings:
        """Read what save wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
