"""Attention: products of queries and keys, a softmax, and products with the values."""
