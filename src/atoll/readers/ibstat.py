"""``ibstat``: the state, rate and link layer of each port of each RDMA adapter of one host."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class RdmaPort(msgspec.Struct, frozen=True):
    """One port. A field that was not printed is empty or ``None``.

    ``state`` (``Active``, ``Initializing``, ``Down``, ``Armed``) and ``physical_state`` (``LinkUp``, ``Polling``,
    ``Disabled``) are as printed; ``rate_bytes_per_s`` is per direction, from the printed Gbit/s; ``link_layer``
    is ``InfiniBand`` or ``Ethernet``; ``sm_lid`` 0 says that no subnet manager has been heard.
    """

    adapter: str
    port: int
    source: Source
    state: str = ""
    physical_state: str = ""
    rate_bytes_per_s: float | None = None
    link_layer: str = ""
    base_lid: int | None = None
    sm_lid: int | None = None
    port_guid: str = ""
    host: str = ""
    adapter_type: str = ""
    firmware: str = ""
