"""``nvidia-smi topo -m``: what lies between each pair of GPUs and NICs of one node.

Vocabulary. A *matrix* has one row and one column per *device* (``GPU0``, ``NIC3``, or ``mlx5_0`` in older drivers) and
after them per-row columns: CPU affinity, NUMA affinity, GPU NUMA ID. A *cell* says what a transfer crosses: ``X``
self, ``NV#`` a bond of # NVLinks, ``PIX`` one PCIe bridge, ``PXB`` several, ``PHB`` the host bridge, ``NODE`` host
bridges of one NUMA node, ``SYS`` (``SOC`` before 2018) the link between sockets; ``topo -p2p`` prints ``OK``,
``NS``, ``CNS``, ``GNS``, ``TNS``, ``DR``, ``U``. A *NIC legend* below maps ``NIC0`` to its HCA name.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class MatrixDevice(msgspec.Struct, frozen=True):
    """One row. ``cells[j]`` is what lies between this device and ``TopologyMatrix.devices[j]``; ``None``: not printed.

    ``kind`` is ``"gpu"``, ``"nic"`` or ``"other"``; ``hca`` the adapter's name (``mlx5_3``) where a legend or the
    column itself gives it; affinities are as printed (``"0-63,128-191"``), empty when absent or ``N/A``.
    """

    name: str
    kind: str
    cells: tuple[str | None, ...]
    source: Source
    hca: str = ""
    cpu_affinity: str = ""
    numa_affinity: str = ""
    gpu_numa_id: str = ""


class TopologyMatrix(msgspec.Struct, frozen=True):
    """One node's matrix; ``host`` only where a prefix (``pdsh``, ``clush``) names it; ``complete``: no cell is
    missing.
    """

    devices: tuple[MatrixDevice, ...]
    complete: bool
    source: Source
    host: str = ""
