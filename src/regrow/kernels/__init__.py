"""Compiled loops: `cpu` knows nothing of training, `gpu` knows the row."""
