"""A number with its origin: every speed of a topology says where it comes from.

Vocabulary. A *figure* is a value in SI units, a *provenance* and the *source* in words. Provenance is ``vendor`` (a
data sheet or manual says so), ``measured`` (somebody ran it), ``derived`` (worked out from such figures) or ``assumed``
(a planning value that nobody vouches for).

A *speed* is what one link carries in one direction: ``bandwidth``, the headline rate of one direction (vendors often
print both directions together; here never), ``efficiency``, the share of it that payload was seen to reach, and
``latency``, the time for the first byte to cross the link and the device behind it. ``usable`` is the product.
"""

from __future__ import annotations

import enum

import msgspec


class Provenance(enum.Enum):
    VENDOR = "vendor"
    MEASURED = "measured"
    DERIVED = "derived"
    ASSUMED = "assumed"


class Figure(msgspec.Struct, frozen=True):
    """``value`` in SI units (or a share), where it comes from, and the source in words."""

    value: float
    provenance: Provenance
    source: str

    def times(self, factor: float, why: str) -> Figure:
        """The figure scaled; a scaled figure is derived."""
        return Figure(self.value * factor, Provenance.DERIVED, f"{why}; {self.source}" if self.source else why)


def vendor(value: float, source: str) -> Figure:
    return Figure(value, Provenance.VENDOR, source)


def measured(value: float, source: str) -> Figure:
    return Figure(value, Provenance.MEASURED, source)


def derived(value: float, source: str) -> Figure:
    return Figure(value, Provenance.DERIVED, source)


def assumed(value: float, source: str) -> Figure:
    return Figure(value, Provenance.ASSUMED, source)


WHOLE = Figure(1.0, Provenance.ASSUMED, "no loss assumed")


class Speed(msgspec.Struct, frozen=True):
    """What a link carries. ``bandwidth`` (bytes per second) is of one direction, from the first end to the second;
    ``back`` of the other, ``None`` where both are equal. ``lanes`` is how many physical links are bonded in it, all of
    them counted in ``bandwidth``: 18 NVLinks, 16 PCIe lanes.
    """

    bandwidth: Figure
    latency: Figure
    efficiency: Figure = WHOLE
    lanes: int = 1
    back: Figure | None = None

    def bandwidth_bytes_per_s(self, backwards: bool = False) -> float:
        return (self.back if backwards and self.back is not None else self.bandwidth).value

    def usable_bytes_per_s(self, backwards: bool = False) -> float:
        return self.bandwidth_bytes_per_s(backwards) * self.efficiency.value

    def times(self, factor: float, why: str) -> Speed:
        """The same link at ``factor`` of its bandwidth, in both directions."""
        back = None if self.back is None else self.back.times(factor, why)
        return msgspec.structs.replace(self, bandwidth=self.bandwidth.times(factor, why), back=back)
