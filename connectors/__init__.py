"""connectors of onceward."""
