"""``python -m moriio_observed``: the command `moriio-observed`, where it is not on the path."""

import sys

from moriio_observed.cli import main

if __name__ == "__main__":
    sys.exit(main())
