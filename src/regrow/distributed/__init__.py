"""Everything that knows of ranks."""
