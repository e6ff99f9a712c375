"""Loaded networks in files: containers, their digests and identity, trust, and the cache."""
