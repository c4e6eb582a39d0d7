"""Small kernels where torch has no single call."""
