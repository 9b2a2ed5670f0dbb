"""What the lab compares, and the claims that the numbers must bear out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from clusters import link_ratio, one_nic, plain_tree

from atoll.algorithms.catalog import build
from atoll.schedule.compose import compose, embed, parallel
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.topology.presets import preset

Simulate = Callable[..., tuple[float, str]]
GroupsOf = Callable[..., Any]

TOLERANCE = 0.05
LARGE_BYTES = 64 << 20
"""From here on latency is a few per cent at most, and the claims are judged."""
NODES, GPUS = 8, 8
DP_NODES = 4


@dataclass(frozen=True)
class Row:
    """One strategy. ``ratio`` is against the first row of its block."""

    strategy: str
    seconds: float
    ratio: float
    bottleneck: str


@dataclass(frozen=True)
class Block:
    """Rows that are compared with each other. ``notes`` state the figures behind."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def row(self, strategy: str) -> Row:
        return next(row for row in self.rows if row.strategy == strategy)


@dataclass(frozen=True)
class Claim:
    """A statement with the number that bears it out."""

    says: str
    holds: bool


@dataclass(frozen=True)
class Report:
    size_bytes: int
    blocks: tuple[Block, ...]
    claims: tuple[Claim, ...]

    def json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self)}


def report(groups_of: GroupsOf, simulate: Simulate, size_bytes: int) -> Report:
    claims: list[Claim] = []
    blocks = [
        *tensor_parallel(groups_of, simulate, size_bytes, claims),
        data_parallel(simulate, size_bytes, claims),
        placement_or_algorithm(groups_of, simulate, size_bytes, claims),
        whole_step(groups_of, simulate, claims),
    ]
    return Report(size_bytes, tuple(blocks), tuple(claims) if size_bytes >= LARGE_BYTES else ())


def tensor_parallel(groups_of: GroupsOf, simulate: Simulate, size_bytes: int, claims: list[Claim]) -> list[Block]:
    """All TP groups of a job at once, each in its island, or each spread over the nodes."""
    ring = prove(build("all_reduce", "ring", GPUS))
    blocks = []
    for cluster, nics in (
        (preset("dgx-h100", NODES), "a NIC per GPU"),
        (one_nic(NODES), "for eight GPUs"),
        (preset("dgx-a100", NODES), "a NIC per GPU"),
        (preset("gb200-nvl72", 2), "two racks, a NIC per GPU"),
    ):
        inside = groups_of("tp", {"tp": GPUS, "dp": NODES}, ("tp", "dp"))
        across = groups_of("tp", {"tp": GPUS, "dp": NODES}, ("dp", "tp"))
        rack = cluster.groups[0].node_type.island_nodes > 1
        if rack:
            # Every other rank in the other rack, so that each hop of the ring crosses.
            members = np.arange(64)
            across = (members % 2 * 72 + members // 2).reshape(NODES, GPUS)
        rows = [
            ("TP 8 in the island", inside),
            ("TP 8 across racks" if rack else "TP 8 across nodes", across),
        ]
        block = _block(f"{cluster.name}, {nics}", [(name, *simulate(cluster, ring, g, size_bytes)) for name, g in rows])
        ratio, modelled, headline = (
            block.rows[1].ratio,
            link_ratio(cluster, usable=True),
            link_ratio(cluster, usable=False),
        )
        notes = [f"NVLink over network, per direction and GPU: {modelled:.3g} as modelled, {headline:.3g} by headlines"]
        if cluster.name == f"{NODES} x dgx-h100":
            notes.append(f"{2 * headline:.3g} where NVLink's 900 GB/s counts both directions and the NIC's 50 GB/s one")
        blocks.append(Block(block.title, block.rows, tuple(notes)))
        claims.append(
            Claim(
                f"{cluster.name}: TP in the island beats TP across by {ratio:.3g}; the links' ratio is {modelled:.3g}",
                abs(ratio / modelled - 1) <= TOLERANCE,
            )
        )
    return blocks


def data_parallel(simulate: Simulate, size_bytes: int, claims: list[Claim]) -> Block:
    """One all-reduce over all GPUs of four nodes: flat or hierarchical, with rails or not, in good and bad order."""
    ranks = DP_NODES * GPUS
    packed = np.arange(ranks)[None]
    dealt = packed.reshape(DP_NODES, GPUS).T.reshape(1, ranks)
    flat = prove(build("all_reduce", "ring", ranks))
    rings = rings_by_nic(ranks)
    right = prove(build("all_reduce", "hierarchical", ranks, group_size=GPUS))
    wrong = prove(build("all_reduce", "hierarchical", ranks, group_size=GPUS, order="strided"))
    rails, tree, narrow = preset("dgx-h100", DP_NODES), plain_tree(DP_NODES), one_nic(DP_NODES)
    block = _block(
        f"DP {ranks} over {DP_NODES} nodes",
        [
            (f"{what}, {where}", *simulate(cluster, proven, order, size_bytes))
            for what, proven, order, where, cluster in (
                ("flat ring", flat, packed, "rails", rails),
                ("flat ring, dealt-out ranks", flat, dealt, "rails", rails),
                ("8 rings, one a NIC", rings, packed, "rails", rails),
                ("hierarchical", right, packed, "rails", rails),
                ("hierarchical, wrong islands", wrong, packed, "rails", rails),
                ("flat ring", flat, packed, "ECMP tree", tree),
                ("hierarchical", right, packed, "ECMP tree", tree),
                ("flat ring", flat, packed, "one NIC", narrow),
                ("flat ring, dealt-out ranks", flat, dealt, "one NIC", narrow),
                ("hierarchical", right, packed, "one NIC", narrow),
            )
        ],
    )

    def seconds(strategy: str) -> float:
        return block.row(strategy).seconds

    gains = {
        where: seconds(f"flat ring, {where}") / seconds(f"hierarchical, {where}")
        for where in ("rails", "ECMP tree", "one NIC")
    }
    told = ", ".join(f"{gain:.3g} on {where}" for where, gain in gains.items())
    claims += [
        Claim(
            f"hierarchical beats one flat ring across nodes: {told}", min(gains.values()) >= 0.85 and gains["rails"] > 3
        ),
        Claim(
            "with rails it gains by using all NICs: eight rings, one a NIC, gain "
            f"{seconds('flat ring, rails') / seconds('8 rings, one a NIC, rails'):.3g} and are not hierarchical",
            seconds("8 rings, one a NIC, rails") < seconds("hierarchical, rails"),
        ),
        Claim(
            "rank order: dealt out over nodes that share one NIC, the same ring takes "
            f"{seconds('flat ring, dealt-out ranks, one NIC') / seconds('flat ring, one NIC'):.3g} times as long",
            seconds("flat ring, dealt-out ranks, one NIC") > 0.9 * GPUS * seconds("flat ring, one NIC"),
        ),
        Claim(
            "hierarchical with islands that are none takes "
            f"{seconds('hierarchical, wrong islands, rails') / seconds('hierarchical, rails'):.3g} times as long",
            seconds("hierarchical, wrong islands, rails") > 2 * seconds("hierarchical, rails"),
        ),
    ]
    return block


def placement_or_algorithm(groups_of: GroupsOf, simulate: Simulate, size_bytes: int, claims: list[Claim]) -> Block:
    """TP 8 by several algorithms, in the island and across nodes."""
    cluster = preset("dgx-h100", NODES)
    places = {
        "island": groups_of("tp", {"tp": GPUS, "dp": NODES}, ("tp", "dp")),
        "across": groups_of("tp", {"tp": GPUS, "dp": NODES}, ("dp", "tp")),
    }
    names = ("ring", "direct", "halving_doubling", "recursive_doubling")
    rows = [
        (
            f"{name.replace('_', '-')}, {where}",
            *simulate(cluster, prove(build("all_reduce", name, GPUS)), g, size_bytes),
        )
        for where, g in places.items()
        for name in names
    ]
    block = _block(f"TP 8 on {cluster.name}: placement or algorithm?", rows)
    seconds = {(row[0].split(", ")[0], row[0].split(", ")[1]): row[1] for row in rows}
    algorithms = [name.replace("_", "-") for name in names]
    by_place = min(seconds[name, "across"] / seconds[name, "island"] for name in algorithms)
    by_name = max(
        max(seconds[name, where] for name in algorithms) / min(seconds[name, where] for name in algorithms)
        for where in places
    )
    claims.append(
        Claim(
            f"placement matters more than algorithm: at least {by_place:.3g} for the same algorithm, at most "
            f"{by_name:.3g} for the same placement",
            by_place > by_name,
        )
    )
    return block


def whole_step(groups_of: GroupsOf, simulate: Simulate, claims: list[Claim]) -> Block:
    """One layer of a 70B model, forward and backward, with its four all-reduces that nothing hides.

    4,096 tokens, hidden size 8,192, 70e9 / 80 parameters a layer: 6 x parameters x tokens FLOPs (Narayanan et al. 2021)
    over 8 GPUs of 989 TFLOP/s (H100, dense bf16, vendor) at half of it (assumed), and 4 all-reduces of 64 MiB.
    """
    compute_s = 6 * 70e9 / 80 * 4096 / GPUS / (989e12 * 0.5)
    activations = 4096 * 8192 * 2
    ring = prove(build("all_reduce", "ring", GPUS))
    rows = []
    for name, cluster, order in (
        ("TP 8 in the island", preset("dgx-h100", NODES), ("tp", "dp")),
        ("TP 8 across nodes, a NIC per GPU", preset("dgx-h100", NODES), ("dp", "tp")),
        ("TP 8 across nodes, one NIC", one_nic(NODES), ("dp", "tp")),
    ):
        seconds, link = simulate(cluster, ring, groups_of("tp", {"tp": GPUS, "dp": NODES}, order), activations)
        rows.append((name, compute_s + 4 * seconds, link))
    note = f"of which {compute_s * 1e3:.2f} ms compute: 6 x 70e9/80 x 4,096 FLOPs on 8 GPUs at half of 989 TFLOP/s"
    block = _block("one layer of a 70B model, forward and backward", rows)
    claims.append(
        Claim(
            f"over a whole step TP across nodes costs {block.rows[1].ratio:.3g} times, between 2 and 5",
            2 <= block.rows[1].ratio <= 5,
        )
    )
    return Block(block.title, block.rows, (note,))


def rings_by_nic(ranks: int) -> ProvenSchedule:
    """Eight rings side by side, each for an eighth of the vector, each leaving the nodes by another GPU, as NCCL's."""
    ring = build("all_reduce", "ring", ranks)
    parts = []
    for lane in range(GPUS):
        order = [node * GPUS + (lane + at) % GPUS for node in range(ranks // GPUS) for at in range(GPUS)]
        starts = lane * ranks + np.arange(ranks)
        parts.append(embed(ring, order, ranks * GPUS, starts=starts, width=1))
    return prove(compose(parallel(*parts), "all_reduce", ranks, ranks * GPUS, name="8 rings"))


def _block(title: str, rows: Sequence[tuple[str, float, str]]) -> Block:
    first = rows[0][1]
    return Block(title, tuple(Row(name, seconds, seconds / first, link) for name, seconds, link in rows))
