"""Placement: which device runs which segment of a network, from measured times or from the memory that devices have."""
