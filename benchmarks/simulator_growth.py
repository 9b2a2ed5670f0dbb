"""How the flow level of the simulator grows with the number of ranks: processor time, memory, events.

    python benchmarks/simulator_growth.py [--ranks 16,64,256,1024] [--cluster dgx-h100]

Each line is a process of its own, which builds and proves the schedule and plays 1 GiB of it on that many GPUs, in
pieces of at most 8 MiB. ``peak`` is the most memory that the process had, the interpreter and the proof included.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import resource
import subprocess
import sys
import time
from typing import Any

from peers_report import heading, machine

from atoll.algorithms.catalog import build
from atoll.schedule.prove import prove
from atoll.simulator.flow import simulate
from atoll.simulator.job import Job
from atoll.topology.presets import preset
from atoll.units import format_duration, format_size

SIZE_BYTES = 1 << 30
SEGMENT_BYTES = 8 << 20
ROWS = (
    ("all_reduce", "ring"), ("all_reduce", "double_binary_tree"), ("all_reduce", "hierarchical"),
    ("all_reduce", "halving_doubling"), ("all_to_all", "direct"),
)  # fmt: skip


def measure(cluster: str, collective: str, algorithm: str, ranks: int) -> dict[str, Any]:
    """One line of the table, measured in this process."""
    nodes = -(-ranks // preset(cluster, 1).num_gpus)
    on = preset(cluster, nodes)
    begin = time.process_time()
    options = {"islands": on.island_of_gpu(range(ranks)).tolist()} if algorithm == "hierarchical" else {}
    proven = prove(build(collective, algorithm, ranks, None, **options))
    ready = time.process_time()
    found = simulate([Job(proven, tuple(range(ranks)), SIZE_BYTES)], on, segment_bytes=SEGMENT_BYTES)
    return {
        "rows": len(proven.schedule), "events": found.events, "proof_s": ready - begin,
        "play_s": time.process_time() - ready, "finish_s": found.finish_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ranks", default="16,64,256,1024", help="numbers of ranks, with commas between")
    parser.add_argument("--cluster", default="dgx-h100", help="a preset")
    parser.add_argument("--one", nargs=3, metavar=("COLLECTIVE", "ALGORITHM", "RANKS"), help="measure one, print JSON")
    given = parser.parse_args()
    if given.one:
        collective, algorithm, ranks = given.one
        print(json.dumps(measure(given.cluster, collective, algorithm, int(ranks))))
        return
    date = dt.datetime.now(dt.UTC).isoformat(timespec="minutes")
    command = ["python", *sys.argv]
    print("\n".join(heading({"date": date, "command": command, "machine": machine()})))
    print(f"# {format_size(SIZE_BYTES)} over {given.cluster}, flow level; processor time, and the most memory\n")
    print(f"{'collective':<11} {'algorithm':<18} {'N':>5} {'rows':>9} {'events':>7} {'build, prove':>13} {'play':>9} "
          f"{'peak':>9}  {'result':>9}")  # fmt: skip
    for collective, algorithm in ROWS:
        for ranks in given.ranks.split(","):
            child = [sys.executable, __file__, "--cluster", given.cluster, "--one", collective, algorithm, ranks]
            one = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
            print(
                f"{collective.replace('_', '-'):<11} {algorithm:<18} {ranks:>5} {one['rows']:>9} {one['events']:>7} "
                f"{format_duration(one['proof_s']):>13} {format_duration(one['play_s']):>9} "
                f"{format_size(one['peak_bytes'] >> 20 << 20):>9}  {format_duration(one['finish_s']):>9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
