"""A seeded simulator of the embedded engine: real tasks, channels, coordinator and decision log; no threads, no clock.

`python -m tests.engine_simulator --runs 100000` runs many; `--seed 7` runs one and prints what happened.
"""
