"""Random graphs: how they are drawn, what their outputs must be in float64, and how a device is tried on them."""
