"""The compiled loops themselves."""
