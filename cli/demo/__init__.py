"""`onceward demo`: a PySpark pipeline on real services, killed at random, with an independent checker at the end."""
