"""sources of onceward."""
