"""What a release wrote, kept as it was: later releases must read it (docs/compatibility.md)."""
