"""What is active is all there is: one vector of values, and where each of them belongs."""
