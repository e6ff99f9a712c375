"""The machine: the language that kernels are written in, LLVM for the processor at hand, and an interpreter that runs a list of calls."""
