"""What the control plane's machines ask for: they decide, ``control`` does it."""

from __future__ import annotations

from typing import NamedTuple

from atoll.runtime.detector import Examine
from atoll.runtime.messages import ControlMessage


class Send(NamedTuple):
    """Send ``message`` to world rank ``peer``."""

    peer: int
    message: ControlMessage


class Wake(NamedTuple):
    """Wake the data loop of a communicator: its ledger's ``failure`` is set."""

    communicator_id: int


class Part(NamedTuple):
    """Say nothing more to world rank ``peer`` once what waits is sent, and hear nothing more of it."""

    peer: int


class Notify(NamedTuple):
    """Let those look again who wait for an agreement to end or for being enlisted."""


Instruction = Send | Wake | Part | Examine | Notify
