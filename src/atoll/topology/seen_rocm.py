"""What ``rocm-smi --showtopo`` says of a node: xGMI links of GPUs one hop apart, and NUMA nodes. It names no NICs."""

from __future__ import annotations

from atoll.readers.rocm_topology import RocmLink, RocmTopology
from atoll.topology.seen import Contradiction, SeenCpu, SeenGpu, SeenLinks, SeenNode


def seen_in_rocm(topology: RocmTopology) -> SeenNode:
    """The node; a link type, hop count or weight that differs between the two directions is a contradiction."""
    pairs = {(link.gpu_a, link.gpu_b): link for link in topology.links}
    numas = sorted({gpu.numa_node for gpu in topology.gpus if gpu.numa_node is not None and gpu.numa_node >= 0})
    cpu_of: dict[int | None, str] = {numa: f"cpu{at}" for at, numa in enumerate(numas)}
    cpu_of = cpu_of or {None: "cpu0"}
    gpus = []
    for gpu in topology.gpus:
        links = tuple(
            SeenLinks("xgmi", f"gpu{link.gpu_b}", 1, link.source, bytes_per_s=link.bandwidth_max_bytes_per_s or None)
            for link in topology.links
            if link.gpu_a == gpu.index and link.link_type == "XGMI" and link.hops in (1, None)
        )
        parent = cpu_of.get(gpu.numa_node, next(iter(cpu_of.values())))
        gpus.append(SeenGpu(f"gpu{gpu.index}", f"GPU{gpu.index}", gpu.source, parent, links=links))
    found = []
    for (a, b), link in pairs.items():
        back = pairs.get((b, a))
        if a < b and back is not None and _words(link) != _words(back):
            found.append(
                Contradiction(f"GPU{a}", f"GPU{b}", _words(link), _words(back), (link.source, back.source))
            )  # fmt: skip
    cpus = tuple(SeenCpu(name, topology.source) for name in cpu_of.values())
    return SeenNode("rocm-smi", topology.source, tuple(gpus), cpus=cpus, contradictions=tuple(found))


def _words(link: RocmLink) -> str:
    hops = "" if link.hops is None else f", {link.hops} hop{'s' if link.hops != 1 else ''}"
    weight = "" if link.weight is None else f", weight {link.weight}"
    return f"{link.link_type or 'no type'}{hops}{weight}"
