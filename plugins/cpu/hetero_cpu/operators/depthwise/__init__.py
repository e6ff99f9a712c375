"""Conv of which each output channel reads one input channel."""
