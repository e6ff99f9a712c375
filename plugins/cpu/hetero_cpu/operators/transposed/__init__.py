"""ConvTranspose whose windows lie side by side."""
