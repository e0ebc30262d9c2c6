"""One thread a test process: `make test` runs two, and more threads than cores only wait for one another."""

import torch

from tests.torch.quick_interpreter import quicken

torch.set_num_threads(1)
quicken()
