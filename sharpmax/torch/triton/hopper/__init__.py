"""Kernels for NVIDIA's Hopper GPUs, and how their results are combined."""
