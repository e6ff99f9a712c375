"""Passes: Network -> Network, each keeping for every node the names of the original nodes that it came from."""
