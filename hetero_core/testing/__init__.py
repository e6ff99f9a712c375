"""What tests need, here and in plugins of others: models, comparisons, and devices that fail on purpose."""
