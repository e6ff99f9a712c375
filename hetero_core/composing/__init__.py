"""The toolkit of devices that are made of other devices: their children, keys, metrics, nested blobs, and runs handed on."""
