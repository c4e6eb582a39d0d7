"""A callback for each trainer that has callbacks; imported only when asked for."""
