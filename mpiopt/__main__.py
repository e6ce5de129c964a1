"""`python -m mpiopt`: the command line, as each rank that it starts runs it."""

import sys

from mpiopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
