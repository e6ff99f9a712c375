"""Choice and call of each kernel, by operator."""
