"""One rank of ``atoll bench``: reads the spec, measures, and rank 0 says each result as one line of JSON."""

from __future__ import annotations

import os
import sys

import msgspec

from atoll.errors import AtollError, InternalError
from atoll.runtime.benchmark import Result, Spec, sweep
from atoll.runtime.start import init


class Line(msgspec.Struct, frozen=True):
    """What rank 0 says: one result each."""

    result: Result


def main(spec_json: str) -> None:
    """Measure ``spec_json`` in the world that this process was launched in."""
    spec = msgspec.json.decode(spec_json, type=Spec)
    with init(timeout=spec.timeout_s) as comm:
        for result in sweep(comm, spec):
            if comm.rank == 0:
                sys.stdout.buffer.write(msgspec.json.encode(Line(result)) + b"\n")
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
