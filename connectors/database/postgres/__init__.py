"""PostgreSQL: its dialect, and what only it has: COPY, and staging tables that one statement merges."""
