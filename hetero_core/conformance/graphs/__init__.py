"""Random graphs: drawing them, their expected outputs in float64, and running them on a device."""
