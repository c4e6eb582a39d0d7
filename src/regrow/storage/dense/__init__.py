"""Weights stay the user's ordinary tensors, with zeros; beside each lies a mask."""
