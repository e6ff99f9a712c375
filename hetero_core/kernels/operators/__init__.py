"""The operators: one function each, with its record above it. What several files share lies a folder higher."""
