"""What every sink into a database shares: modes, what a ledger proves, retries."""
