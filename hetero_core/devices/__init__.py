"""Who can run a network: device names, configuration, metrics, queries, and the registry of plugins."""
