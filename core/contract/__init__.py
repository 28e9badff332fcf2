"""What onceward and the systems beside it agree on: sinks, sources, connectors, and what travels between them."""
