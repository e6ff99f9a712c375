"""Operators that move or rename elements: views, copies, Concat."""
