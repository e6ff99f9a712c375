"""Devices: their names, configuration, metrics, queries, and the registry of plugins."""
