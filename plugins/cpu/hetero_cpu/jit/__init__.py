"""The provider JIT: kernels written for the processor at hand by llvmlite, and an interpreter that runs a list of them in one call."""
