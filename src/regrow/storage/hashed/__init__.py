"""Many positions, one shared value each."""
