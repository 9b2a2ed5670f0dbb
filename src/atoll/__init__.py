"""Atoll: collective communication as data. See README.md for the six files to read first.

What most programs need is here; it is imported when it is first used, so that ``import atoll`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from atoll.algorithms.catalog import build
    from atoll.errors import (
        AtollError,
        CollectiveMismatch,
        CollectiveTimeout,
        InternalError,
        PeerLost,
        ScheduleError,
        SpecError,
    )
    from atoll.resilience.checkpoint import Checkpointer
    from atoll.resilience.checkpoint_layout import Region, Shard
    from atoll.runtime.buckets import Buckets
    from atoll.runtime.communicator import Communicator
    from atoll.runtime.reduction import associative
    from atoll.runtime.start import init
    from atoll.runtime.work import Work
    from atoll.schedule.builder import ScheduleBuilder
    from atoll.schedule.certify import certify
    from atoll.schedule.count import count
    from atoll.schedule.interpret import interpret
    from atoll.schedule.prove import ProvenSchedule, prove
    from atoll.schedule.table import Schedule

__all__ = [
    "AtollError", "Buckets", "Checkpointer", "CollectiveMismatch", "CollectiveTimeout", "Communicator",
    "InternalError", "PeerLost", "ProvenSchedule", "Region", "Schedule", "ScheduleBuilder", "ScheduleError", "Shard",
    "SpecError", "Work", "associative", "build", "certify", "count", "init", "interpret", "prove",
]  # fmt: skip

_HOME = {
    "build": "algorithms.catalog",
    "Checkpointer": "resilience.checkpoint",
    "Region": "resilience.checkpoint_layout",
    "Shard": "resilience.checkpoint_layout",
    "Buckets": "runtime.buckets",
    "Communicator": "runtime.communicator",
    "associative": "runtime.reduction",
    "init": "runtime.start",
    "Work": "runtime.work",
    "ScheduleBuilder": "schedule.builder",
    "certify": "schedule.certify",
    "count": "schedule.count",
    "interpret": "schedule.interpret",
    "ProvenSchedule": "schedule.prove",
    "prove": "schedule.prove",
    "Schedule": "schedule.table",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(importlib.import_module(f"atoll.{_HOME.get(name, 'errors')}"), name)
