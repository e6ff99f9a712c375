"""Windows that walk over images, which depthwise convolutions and poolings share."""
