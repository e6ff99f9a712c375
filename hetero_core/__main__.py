"""`python -m hetero_core` is the `hetero` command."""

import sys

from hetero_core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
