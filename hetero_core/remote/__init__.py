"""A Core elsewhere: what its host answers, and the device that mirrors it here. Knows neither pipes nor shared memory."""
