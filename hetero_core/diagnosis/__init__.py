"""What is wrong with an installation, and what cures it: findings of pure functions over what was read of the machine."""
