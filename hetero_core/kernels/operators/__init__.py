"""The operators: a function for each, with its record above it. Shared parts are a folder higher."""
