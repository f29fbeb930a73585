"""Benchmarks and the models they run. Only this package compares with other compilers."""
