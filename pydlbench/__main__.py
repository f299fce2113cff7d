"""``python -m pydlbench``: the same as the script ``pydlbench``."""

import sys

from pydlbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
