"""`python -m sharpmax` is the command `sharpmax`."""

import gc
import sys


def main() -> int:
    """Run the command; Ctrl-C while it is still being imported is one line, as it is later."""
    try:
        from sharpmax.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("sharpmax: interrupted; nothing was kept", file=sys.stderr)
        return 130
    finally:
        # The process ends here. The interpreter's last collection would look through the 440,000 objects that torch and
        # transformers make, seconds after the last line, to free memory that the system takes back anyway.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
