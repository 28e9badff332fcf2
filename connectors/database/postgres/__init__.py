"""PostgreSQL: connections, binary COPY from Arrow, the ledger, prepared transactions, staging."""
