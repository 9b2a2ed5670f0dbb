"""Ends the ranks of a launcher that was killed: run as a script of its own, beside the ranks.

The launcher holds the other end of standard input. It writes the process group of every rank that it starts, one number
on a line, and ``done`` when it has cleaned up itself. If the input ends without that, the launcher was killed, and all
groups are. Started without Atoll's package or any other, so that it is there at once.
"""

import os
import signal
import sys


def main() -> None:
    """Read until the end of input; kill what is left."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
