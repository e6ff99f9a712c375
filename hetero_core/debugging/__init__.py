"""Finding a wrong result: where two devices part, and the smallest network that shows it."""
