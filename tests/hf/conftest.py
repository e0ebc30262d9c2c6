"""One thread a test process: `make test` runs two, and more threads than cores only wait for one another."""

import torch

torch.set_num_threads(1)
