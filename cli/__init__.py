"""The command line: `onceward …`, thin over what it shows."""
