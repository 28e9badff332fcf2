"""A pipeline under continuous faults, for hours."""
