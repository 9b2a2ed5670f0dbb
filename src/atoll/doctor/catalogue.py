"""All rules, in the order of the catalogue. An explicit tuple: nothing registers itself."""

from __future__ import annotations

from typing import Final

from atoll.doctor.rule import Rule
from atoll.doctor.rules_fabric import RULES as FABRIC
from atoll.doctor.rules_gpudirect import RULES as GPUDIRECT
from atoll.doctor.rules_hang import RULES as HANG
from atoll.doctor.rules_layout import RULES as LAYOUT
from atoll.doctor.rules_network import RULES as NETWORK
from atoll.doctor.rules_process import RULES as PROCESS
from atoll.doctor.rules_warnings import RULES as WARNINGS
from atoll.doctor.rules_xid import RULES as XID
from atoll.errors import SpecError, nearest

RULES: Final[tuple[Rule, ...]] = (
    *sorted((*NETWORK, *FABRIC), key=lambda rule: rule.id),
    *GPUDIRECT,
    *LAYOUT,
    *HANG,
    *PROCESS,
    *XID,
    *WARNINGS,
)


def rule_of(rule_id: str) -> Rule:
    """The rule with this id, in any case. Raises ``SpecError`` for an unknown one."""
    found = next((rule for rule in RULES if rule.id == rule_id.strip().upper()), None)
    if found is None:
        raise SpecError(f"no rule {rule_id!r}: {nearest(rule_id.upper(), [rule.id for rule in RULES])}")
    return found
