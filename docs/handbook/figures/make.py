"""Every figure of the handbook, drawn from schedules, contracts and the cost model; nothing is drawn by hand.

    python docs/handbook/figures/make.py            write all of them beside this file
    python docs/handbook/figures/make.py --check    say which are not what would be written; status 1 if any

``FOLDER`` as a last argument takes the place of this file's folder.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from charts import bars, lines
from memory import before_and_after, progress

from atoll.algorithms.catalog import build
from atoll.planning import draw_pipeline, draw_placement
from atoll.planning.blast_radius import blast_radius
from atoll.planning.parallelism import Parallelism
from atoll.planning.pipeline import play
from atoll.planning.placement import place
from atoll.schedule.cost import CostModel, Link, cost_model
from atoll.schedule.count import count
from atoll.schedule.draw_svg import draw_svg
from atoll.schedule.prove import prove
from atoll.topology.presets import preset
from atoll.units import format_bandwidth, format_duration, format_size

# Assumed, not measured: a NIC of 400 Gbit/s each way, and 5 us for a message between two hosts.
LINK = Link(5e-6, 50e9)
LINK_TEXT = "alpha 5 us, 50 GB/s each way (assumed); times by the cost model"

# Bytes a second in one direction, per GPU; sources in chapter 1, which prints the same numbers.
LADDER = (
    ("H100 memory, HBM3", 3.35e12),
    ("NVLink 5 (B200)", 900e9),
    ("NVLink 4 (H100)", 450e9),
    ("NVLink 3 (A100)", 300e9),
    ("PCIe 5 x16", 63e9),
    ("InfiniBand NDR, 400 Gbit/s", 50e9),
    ("InfiniBand HDR, 200 Gbit/s", 25e9),
    ("Ethernet, 100 Gbit/s", 12.5e9),
)
COLLECTIVES = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter",
)  # fmt: skip
TIMES_S = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@functools.cache
def model(collective: str, name: str, world_size: int, root: int | None = None) -> CostModel:
    return cost_model(count(prove(build(collective, name, world_size, root))))


def figures() -> dict[str, str]:
    """File name to SVG."""
    drawn = {f"{name.replace('_', '-')}.svg": before_and_after(name) for name in COLLECTIVES}
    drawn["ring-progress.svg"] = progress("ring", "The ring all-reduce of four ranks: who holds what")
    for file, name, world_size, options in (
        ("ring-4.svg", "ring", 4, {}),
        ("binomial-tree-8.svg", "binomial_tree", 8, {}),
        ("recursive-doubling-8.svg", "recursive_doubling", 8, {}),
        ("hierarchical-8.svg", "hierarchical", 8, {"group_size": 4}),
    ):
        drawn[file] = draw_svg(prove(build("all_reduce", name, world_size, **options)))
    drawn["ladder.svg"] = bars(
        "The bandwidth ladder, per GPU and direction", [(*rung, format_bandwidth(rung[1])) for rung in LADDER],
        note="Vendors' figures, sources in the text. NVLink is sold as twice this: both directions together.",
    )  # fmt: skip
    drawn["sizes.svg"] = _sizes()
    drawn["worlds.svg"] = _worlds()
    drawn["segments.svg"] = _segments()
    for name, mapping in (("placement-packed", "packed"), ("placement-dealt-out", "round-robin")):
        cut = Parallelism(tp=8, pp=4, dp=2)
        drawn[f"{name}.svg"] = draw_placement.draw_svg(place(preset("dgx-h100", 8), cut, mapping))
    schedules = [play("gpipe", 4, 8), play("1f1b", 4, 8), play("1f1b", 4, 8, interleave=2)]
    drawn["pipeline.svg"] = draw_pipeline.draw_svg(
        schedules, "Three schedules of one pipeline; backward takes twice forward"
    )
    drawn["blast-radius.svg"] = _blast()
    return drawn


def _blast() -> str:
    """GPUs that stand idle when the worst part of a kind fails, four jobs of 128 GPUs on 64 nodes."""
    cluster, cut = preset("dgx-h100", 64), Parallelism(tp=8, pp=4, dp=4)
    rows = []
    found = {}
    for how in ("packed", "dealt out"):
        jobs = []
        for job in range(4):
            nodes = range(16 * job, 16 * job + 16) if how == "packed" else range(job, 64, 4)
            jobs.append(place(cluster, cut, [8 * node + gpu for node in nodes for gpu in range(8)]))
        found[how] = {blast.part: blast for blast in blast_radius(jobs, racks_per_feed=4)}
    for part in ("node", "leaf", "rail", "rack", "power feed of 4 racks"):
        for how, blasts in found.items():
            blast = blasts[part]
            jobs_stop = f"{blast.jobs} job{'s' if blast.jobs > 1 else ''}"
            rows.append((f"{part.split(' of ')[0]}, jobs {how}", float(blast.idle), f"{blast.idle}, {jobs_stop}"))
    return bars(
        "GPUs idle when one part fails: four jobs of 128 GPUs", rows,
        note="64 DGX H100, racks of 4 nodes, feeds of 4 racks; packed: 16 nodes in a row, dealt out: every fourth node",
    )  # fmt: skip


def _sizes() -> str:
    sizes = [float(1 << power) for power in range(10, 31)]
    names = ("ring", "recursive_doubling", "binomial_tree", "double_binary_tree", "halving_doubling")
    series = [
        (name.replace("_", "-"), list(zip(sizes, model("all_reduce", name, 64).seconds(sizes, LINK), strict=True)))
        for name in names
    ]
    return lines(
        "All-reduce among 64 ranks", LINK_TEXT, series,
        x_axis=("size of the tensor", sizes[::5], format_size), y_axis=("time", TIMES_S[1:], format_duration),
    )  # fmt: skip


def _worlds() -> str:
    worlds = [2, 4, 8, 16, 32, 64, 128]
    series = []
    for size in (1 << 30, 64 << 20, 4 << 20, 64 << 10):
        points = [(float(n), float(model("all_reduce", "ring", n).stepwise_s(size, LINK))) for n in worlds]
        series.append((f"ring, {format_size(size)}", points))
    points = [
        (float(n), float(model("all_reduce", "recursive_doubling", n).stepwise_s(64 << 10, LINK))) for n in worlds
    ]
    series.append(("rec. doubling, 64 KiB", points))
    return lines(
        "The ring's time against the number of ranks", LINK_TEXT, series,
        x_axis=("ranks", worlds, "{:.0f}".format), y_axis=("time", TIMES_S[:6], format_duration),
    )  # fmt: skip


def _segments() -> str:
    size = 64 << 20
    segments = [float(1 << power) for power in range(12, 27)]
    series = []
    for world_size in (64, 8, 2):
        chain = model("broadcast", "chain", world_size, 0)
        points = [(s, float(chain.pipelined_s(size, LINK, segment_bytes=s))) for s in segments]
        series.append((f"{world_size} ranks", points))
    return lines(
        f"Broadcast of {format_size(size)} down a chain, in segments", LINK_TEXT, series,
        x_axis=("size of a segment", segments[::2], format_size), y_axis=("time", TIMES_S[3:6], format_duration),
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    folders = [Path(argument) for argument in arguments if argument != "--check"]
    folder = folders[0] if folders else Path(__file__).resolve().parent
    stale = []
    drawn = figures()
    for name, svg in drawn.items():
        path = folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == svg:
            continue
        if check:
            stale.append(f"{name} is not what make.py draws now")
        else:
            path.write_text(svg, encoding="utf-8")
            print(f"wrote {path}", file=sys.stderr)
    stale += [f"{path.name} is drawn by nobody" for path in sorted(folder.glob("*.svg")) if path.name not in drawn]
    print("\n".join(stale), end="\n" if stale else "")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
