"""Code that tests and benchmarks of several packages share and no wheel contains: models, a simulated card, the audit of plans."""
