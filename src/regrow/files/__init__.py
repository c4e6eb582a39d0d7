"""The small file of a sparse model, and files for other programs."""
