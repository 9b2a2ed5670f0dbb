"""The queue at each end of a cable, and the windows that keep it short.

A token bucket (tbf) lets pass what its rate allows, and at most ``BURST_S`` worth of it at once. What comes faster
waits, first in, first out. Of TCP streams that meet there, each gets a share of the link in proportion to the window it
fills the queue with; while one with a large window has most of one link, another link may stand idle, for what would
feed it waits elsewhere. Switches with credits or rate control share a link about evenly, and so does the simulator.
Therefore each route has a window of its own, the same for all: ``WINDOW_S`` worth of the link it begins with, sent at
once, without a slow start. Measured among 2 x 2 ranks that all send to two others in both directions, 6 MB/s each: 7 to
17 % above the even share, without these windows 10 to 31 %.
"""

from __future__ import annotations

from typing import Final

from atoll.emulator.layout import Cable

QUEUE_BYTES: Final = 8 << 20
"""More than the windows of all connections that may meet in one queue: a slow link, not a lossy one."""
BURST_S: Final = 0.0026
"""Shorter than the scheduling delays of a busy machine it would lose bandwidth; longer, it would let short messages
through unlimited. 128 KB at 50 MB/s."""
LEAST_BURST_BYTES: Final = 4 * 1514
WINDOW_S: Final = 0.0055
LEAST_WINDOW_BYTES: Final = 32 << 10
_INITIAL_SEGMENTS: Final = 1000
"""More than any window holds."""


def burst_bytes(bytes_per_s: float) -> int:
    """What the bucket of a link of this rate holds."""
    return max(LEAST_BURST_BYTES, round(bytes_per_s * BURST_S))


def queue_command(cable: Cable, interface: str) -> str:
    """What makes ``tc`` set up the queue at one end of a cable."""
    rate, burst = round(cable.bytes_per_s), burst_bytes(cable.bytes_per_s)
    return f"qdisc add dev {interface} root tbf rate {rate}bps burst {burst} limit {QUEUE_BYTES}"


def window_options(bytes_per_s: float) -> str:
    """What ``ip route`` says about a route over a link of this rate."""
    window = max(LEAST_WINDOW_BYTES, round(bytes_per_s * WINDOW_S))
    return f"window {window} initcwnd {_INITIAL_SEGMENTS} initrwnd {_INITIAL_SEGMENTS}"
