"""Runs of plans: their memory, threads and checks."""
