"""The GPU kernels themselves. Imported only where Triton is installed."""
