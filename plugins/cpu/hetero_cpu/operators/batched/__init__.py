"""Products of two computed matrices, one or many."""
