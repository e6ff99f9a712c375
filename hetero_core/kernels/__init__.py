"""The toolkit of array devices: kernels on an array namespace, the table of supported operators, and programs that run them."""
