"""Tools for tests, here and in other people's plugins: models, comparisons, and devices that fail on purpose."""
