"""What a process needs in several places: options, secrets, caches of a process, rows as JSON, programs."""
