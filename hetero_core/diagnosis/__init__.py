"""Faults of an installation and their cures: findings of pure functions over what was read of the machine."""
