"""Implementation 'chunked': streaming attention in JAX, on any device, in O(n) memory."""
