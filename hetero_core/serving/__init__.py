"""Models answered over HTTP and gRPC by the Open Inference Protocol; `hetero serve` is its command."""
