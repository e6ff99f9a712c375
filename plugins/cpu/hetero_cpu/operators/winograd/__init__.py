"""3x3 convolutions by the transforms of Winograd."""
