"""Keyed state and operator state: how it is used, kept while it is used, and written out."""
