"""Many runs: their order, what they have in common, in processes and in lanes."""
