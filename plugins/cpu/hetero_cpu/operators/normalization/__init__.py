"""Normalizations and softmax: kernels that read a row more than once."""
