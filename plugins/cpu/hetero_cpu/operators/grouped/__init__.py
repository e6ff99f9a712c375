"""Conv in several groups of channels."""
