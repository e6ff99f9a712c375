"""A Core elsewhere: its host, and the device that mirrors it here. Knows neither pipes nor shared memory."""
