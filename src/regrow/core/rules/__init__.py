"""The four steps of a rewiring, as pure functions on the row."""
