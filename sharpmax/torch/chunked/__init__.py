"""Implementation 'chunked': streaming attention in PyTorch, on any device, in O(n) memory."""
