"""Sinks into PostgreSQL, MariaDB and SQLite: one ledger, two ways to commit, a dialect for each database."""
