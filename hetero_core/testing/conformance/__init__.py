"""The conformance kit: what a device has to do to be a device, as checks that its author can run."""
