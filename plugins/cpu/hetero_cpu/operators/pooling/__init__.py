"""Maxima and means of windows and of whole images."""
