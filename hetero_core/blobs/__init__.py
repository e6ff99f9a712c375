"""What outlives a run: containers, their digests and identity, whom to trust, and caches of loaded networks."""
