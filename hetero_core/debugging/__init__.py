"""Debugging of wrong results: finds the first value that differs on two devices, and the smallest network that shows it."""
