"""The toolkit of array devices: kernels on an array namespace, the table of what they claim, and programs that run them."""
