"""Implementations 'pallas' and 'hybrid': our own kernels. `hopper/` holds those of one chip."""
