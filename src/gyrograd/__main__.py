"""`python -m gyrograd`: the command line."""

import sys

from gyrograd.cli import main

if __name__ == "__main__":
    sys.exit(main())
