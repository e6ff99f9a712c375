"""Functions and arithmetic of elements, alone, in chains and behind products."""
