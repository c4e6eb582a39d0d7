"""Where the weights live."""
