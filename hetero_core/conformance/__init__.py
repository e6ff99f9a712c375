"""The conformance kit for pytest: `pytest --pyargs hetero_core.conformance --hetero-device NAME`, or a subclass in your tests."""
