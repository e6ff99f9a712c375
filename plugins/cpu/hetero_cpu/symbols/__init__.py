"""Sizes, expressions of symbols, and what holds for them."""
