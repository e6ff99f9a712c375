"""Sizes, expressions of symbols, and guards."""
