"""One rank of ``atoll bench``: reads the spec, measures, and rank 0 says each result as one line of JSON."""

from __future__ import annotations

import msgspec

from atoll.runtime.benchmark import Result, Spec, sweep
from atoll.runtime.rank_program import run_rank, say
from atoll.runtime.start import init


class Line(msgspec.Struct, frozen=True):
    """What rank 0 says: one result each."""

    result: Result


def main(spec_json: str) -> None:
    """Measure ``spec_json`` in the world that this process was launched in."""
    spec = msgspec.json.decode(spec_json, type=Spec)
    with init(timeout=spec.timeout_s) as comm:
        for result in sweep(comm, spec):
            say(comm, Line(result))
        comm.barrier()


if __name__ == "__main__":
    run_rank(main)
