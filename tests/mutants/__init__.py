"""Errors that the protocol must not have, as patches: each must make a fast test fail.

`python -m tests.mutants` puts them into a copy of the code, one after another, and runs the tests.
"""
