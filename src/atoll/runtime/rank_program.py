"""What the rank programs of Atoll's own commands have in common: one argument, lines of JSON, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec

from atoll.errors import AtollError, InternalError
from atoll.runtime.communicator import Communicator


def say(comm: Communicator, line: msgspec.Struct) -> None:
    """One line of JSON on standard output, by rank 0 alone."""
    if comm.rank == 0:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


def run_rank(main: Callable[[str], None]) -> None:
    """Call ``main`` with the command line's argument; an error of Atoll's taxonomy is one line that names the rank."""
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)  # the launcher passes Ctrl-C on, and says so itself
    except InternalError:
        raise
    except AtollError as error:
        sys.exit(f"rank {os.environ.get('ATOLL_RANK', '?')}: {type(error).__name__}: {error}")
