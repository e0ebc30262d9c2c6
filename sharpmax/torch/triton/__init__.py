"""Implementations 'triton' and 'hybrid': our own kernels. `hopper/` holds those of one chip."""
