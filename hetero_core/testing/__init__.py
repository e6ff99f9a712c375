"""Tools for tests of hetero and of plugins: models, comparisons, and devices that fail on purpose."""
