"""For tests of pipelines and of sinks: real services in containers (`onceward.testing.containers`).

This folder is imported as `onceward.testing`, and only so; its modules therefore import absolutely.
"""
