"""The GPU target: kernels as Triton source, launched by a native function of ours."""
