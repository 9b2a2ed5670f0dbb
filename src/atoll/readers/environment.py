"""Environment dumps: ``env``, ``export``/``declare -x``, shell scripts, ``docker -e``, env files, YAML env lists,
``nccl.conf``.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class EnvironmentVariable(msgspec.Struct, frozen=True):
    """``name`` is set to ``value`` (quotes removed, nothing expanded). ``form``: ``env``, ``export``, ``docker``,
    ``yaml`` or ``json``. ``rank`` and ``host`` where the line itself is prefixed with them."""

    name: str
    value: str
    source: Source
    form: str = "env"
    host: str = ""
    rank: int | None = None
