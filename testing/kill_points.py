"""The points at which a process may be killed, for tests that stop a pipeline there or watch it pass."""

from onceward.core.kit.crash_points import Step, hooked

__all__ = ["Step", "hooked"]
