"""Our own kernels, for the implementations 'pallas' and 'hybrid'; `hopper/` holds those of one chip."""
