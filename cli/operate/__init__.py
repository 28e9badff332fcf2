"""`onceward txn` and `onceward checkpoints`: what is in doubt, and how an operator ends it."""
