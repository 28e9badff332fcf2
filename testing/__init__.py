"""For tests of pipelines, sinks and sources: a conformance suite, fault injection, real services (docs/testing.md)."""
