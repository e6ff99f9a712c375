"""Passes of this device alone: half precision, integers, moves of elements, sequences, pads, and caches of attention.

They import only the core.
"""
