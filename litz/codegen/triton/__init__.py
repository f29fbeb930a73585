"""The GPU target: kernels as Triton source, launched by native functions."""
