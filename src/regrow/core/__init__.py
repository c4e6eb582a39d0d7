"""The heart, pure: the row, evidence and selections, a rewiring in four steps."""

__version__ = "0.1.0"
