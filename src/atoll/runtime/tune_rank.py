"""One rank of ``atoll tune``: measures, and rank 0 says each timing as one line of JSON."""

from __future__ import annotations

import msgspec

from atoll.runtime.rank_program import run_rank, say
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
            say(comm, Line(timing))
        comm.barrier()


if __name__ == "__main__":
    run_rank(main)
