"""`python -m sharpmax` is the command `sharpmax`."""

import sys


def main() -> int:
    """Run the command; Ctrl-C while it is still being imported is one line, as it is later."""
    try:
        from sharpmax.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("sharpmax: interrupted; nothing was kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
