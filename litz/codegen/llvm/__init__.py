"""The CPU target: kernels as LLVM IR text with explicit vectors."""
