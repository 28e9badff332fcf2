"""The fixtures that users import too."""

from onceward.testing.containers import kafka_container, mariadb_container, postgres_container

__all__ = ["kafka_container", "mariadb_container", "postgres_container"]
