"""The command ``kerple``: ``python -m kerple train --config run.toml --out runs/one``."""

from __future__ import annotations

import os
import sys
import sysconfig

from . import _native


def main() -> int:
    """Runs the command with the arguments of this process; returns the exit code.

    The command expects to own the process.
    """
    script = os.path.abspath(sys.argv[0])
    if script == os.path.abspath(__file__):
        script = os.path.join(sysconfig.get_path("scripts"), "kerple")
    return _native.command(script, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
