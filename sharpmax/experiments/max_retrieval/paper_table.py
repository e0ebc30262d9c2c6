"""Table 1 of arXiv 2410.01104, accuracy in percent, as far as public sources agree on it; None where they do not."""

SIZES = tuple(2**k for k in range(4, 15))
SOFTMAX = (98.6, None, 94.3, 89.7, 81.3, 70.1, 53.8, 35.7, 22.6, None, 12.4)
ADAPTIVE = (98.6, None, 94.5, 89.9, 82.1, 72.5, 57.7, 39.4, 24.9, None, 14.0)
P_VALUE = (0.4, None, 0.002, None, 2e-4, None, 1e-4, None, 0.02, None, 4e-3)
