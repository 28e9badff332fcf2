"""Sinks as their authors write them, and the mistakes that are planted in them, one at a time (mistakes.toml)."""
