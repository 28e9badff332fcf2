"""The embedded engine: sources, functions with state, and sinks in one process, checkpointed by barriers."""
