"""What tests and benchmarks of several packages share and no wheel carries: models, a card of make-believe, the audit of plans."""
