"""Passes of this device alone: moves of elements, chains of scalars, pads, and caches of attention. They import only the core."""
