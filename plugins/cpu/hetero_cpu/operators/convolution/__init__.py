"""Conv over images: its geometry, images with halos, and its steps."""
