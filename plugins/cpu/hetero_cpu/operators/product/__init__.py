"""Products with constant weights: MatMul, Gemm, and what convolutions share with them."""
