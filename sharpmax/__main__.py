"""`python -m sharpmax` is the command `sharpmax`."""

import sys

from sharpmax.cli import main

sys.exit(main())
