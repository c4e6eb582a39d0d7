"""Sparse layers on a CPU: the calls, and which way is faster."""
