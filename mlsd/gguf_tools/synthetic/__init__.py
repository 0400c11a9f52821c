"""Models written here: random, synthetic of any size, perturbed."""
