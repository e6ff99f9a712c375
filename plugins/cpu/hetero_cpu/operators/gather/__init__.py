"""Gather: rows of a table by their numbers."""
