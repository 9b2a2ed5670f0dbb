"""One rank of ``atoll tune``: measures, and rank 0 says each timing as one line of JSON."""

from __future__ import annotations

import os
import sys

import msgspec

from atoll.errors import AtollError, InternalError
from atoll.runtime.start import init
from atoll.runtime.tune import TIMEOUT_S, Timing, TuneSpec, measure


class Line(msgspec.Struct, frozen=True):
    """What rank 0 says: one timing each."""

    timing: Timing


def main(spec_json: str) -> None:
    """Measure ``spec_json`` in the world that this process was launched in."""
    spec = msgspec.json.decode(spec_json, type=TuneSpec)
    with init(timeout=TIMEOUT_S) as comm:
        for timing in measure(comm, spec):
            if comm.rank == 0:
                sys.stdout.buffer.write(msgspec.json.encode(Line(timing)) + b"\n")
                sys.stdout.buffer.flush()
        comm.barrier()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)  # the launcher passes Ctrl-C on, and says so itself
    except InternalError:
        raise
    except AtollError as error:
        sys.exit(f"rank {os.environ.get('ATOLL_RANK', '?')}: {type(error).__name__}: {error}")
