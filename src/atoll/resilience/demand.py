"""What every formula here demands of its numbers: finite, and of the right sign. ``SpecError`` names the number."""

from __future__ import annotations

import math

from atoll.errors import SpecError


def positive(value: float, what: str) -> float:
    """``value`` when it is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise SpecError(f"{what}: expected a finite number above 0, got {value:g}")
    return value


def not_negative(value: float, what: str) -> float:
    """``value`` when it is finite and not below zero."""
    if not (math.isfinite(value) and value >= 0):
        raise SpecError(f"{what}: expected a finite number, 0 or above, got {value:g}")
    return value


def at_least(value: int, least: int, what: str) -> int:
    """``value`` when it is a whole number of at least ``least``."""
    if value < least:
        raise SpecError(f"{what}: expected at least {least}, got {value}")
    return value


def share(value: float, what: str) -> float:
    """``value`` when it lies in 0 to 1."""
    if not 0 <= value <= 1:
        raise SpecError(f"{what}: expected a share from 0 to 1, got {value:g}")
    return value
