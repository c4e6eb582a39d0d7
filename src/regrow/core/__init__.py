"""The heart, pure: one row, and four steps on it: evidence -> prune -> allot -> grow."""
