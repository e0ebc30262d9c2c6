"""Kernels for NVIDIA's Hopper GPUs, by Pallas in its Mosaic lowering."""
