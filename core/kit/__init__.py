"""What a process needs in several places: options, caches of a process, rows as JSON."""
