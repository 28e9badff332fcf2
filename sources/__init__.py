"""Sources: resettable, so that an epoch can be read again exactly as it was."""
