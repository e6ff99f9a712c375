"""Resize and Upsample of images."""
