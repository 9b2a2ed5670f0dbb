"""Hash what names people and machines, the same way everywhere in one report: hosts, addresses, users, paths with
users.

The same name becomes the same ``host-3f9a1c`` in every place, so a reader can still follow who is who. The hash is
keyed with a random key of this run unless one is given: without the key a list of likely host names cannot be tried
out. Ranks, bus ids, adapters, interfaces and numbers stay: they name nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import Any, Final

from atoll.doctor.evidence import Evidence

_IPV4: Final = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IPV6: Final = re.compile(r"(?<![0-9A-Za-z:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![0-9A-Za-z:.])")
_USER_PATH: Final = re.compile(
    r"(?P<root>/(?:home|Users|export/home|gpfs/[\w.-]+|lustre/[\w.-]+|data/home|scratch|u)/)(?P<user>[\w.-]+)"
)
_USER_FIELD: Final = re.compile(
    r"(?P<key>\b(?:user(?:name)?|USER|LOGNAME|SUDO_USER|SLURM_JOB_USER|uid_name)\s*[=:]\s*)(?P<user>[A-Za-z_][\w.-]*)"
)
_MAIL: Final = re.compile(r"\b[\w.+-]{1,64}@(?P<domain>[\w-]{1,63}(?:\.[\w-]{1,63}){0,6})")
_DOMAIN_NAME: Final = re.compile(
    r"\b(?:[a-z0-9-]{1,63}\.){1,6}(?:internal|local|lan|corp|cluster|svc|com|org|net|edu|gov|io|ai|de|cn)\b"
)
_KEEP_ADDRESSES: Final = frozenset({"0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1"})
_KEEP_NAMES: Final = frozenset({"localhost", "hostname", "rank", "host", "nccl", "gpu", "node", "info", "warn", ""})


class Redactor:
    """Replaces names in text and in documents; ``key`` makes the hashes repeatable."""

    def __init__(self, hosts: Iterable[str], key: bytes) -> None:
        self._key = key
        names = {name for name in hosts if name.lower() not in _KEEP_NAMES and not _is_address(name)}
        names |= {name.split(".")[0] for name in names if len(name.split(".")[0]) > 2}
        ordered = sorted((name for name in names if len(name) > 1), key=lambda name: (-len(name), name))
        # Node lists share long stems, so names are matched whole; a dot may follow (a domain) but no word character.
        self._hosts = (
            re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, ordered)) + r")(?:\.[\w.-]*\w)?(?![\w-])")
            if ordered
            else None
        )
        self._users: set[str] = set()

    def text(self, text: str) -> str:
        """``text`` without names."""
        text = _MAIL.sub(lambda match: self._hash("mail", match[0]), text)
        text = _USER_PATH.sub(lambda match: match["root"] + self._user(match["user"]), text)
        text = _USER_FIELD.sub(lambda match: match["key"] + self._user(match["user"]), text)
        if self._hosts is not None:
            text = self._hosts.sub(lambda match: self._host(match[0]), text)
        text = _DOMAIN_NAME.sub(lambda match: self._hash("host", match[0]), text)
        text = _IPV4.sub(lambda match: self._address(match[0]), text)
        return _IPV6.sub(lambda match: self._address(match[0]), text)

    def document(self, value: Any) -> Any:
        """Plain data without names: every string in it, keys excepted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.document(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return value

    def _hash(self, kind: str, name: str) -> str:
        digest = hmac.new(self._key, f"{kind}\0{name.lower()}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:8]}"

    def _host(self, name: str) -> str:
        # node1 and node1.cluster.local are one host.
        return self._hash("host", name.split(".")[0])

    def _user(self, name: str) -> str:
        return self._hash("user", name)

    def _address(self, text: str) -> str:
        if text in _KEEP_ADDRESSES or not _is_address(text):
            return text
        return self._hash("addr", text)


def redactor_of(evidence: Evidence, key: bytes) -> Redactor:
    """A redactor that knows every host of the evidence."""
    hosts = {speaker.host for speaker in evidence.nccl.speakers}
    hosts |= {rank.host for run in evidence.runs for rank in run.ranks} | {
        f.host for r in evidence.runs for f in r.failures
    }
    hosts |= {name for pair in evidence.pairs for name in (pair.host_a, pair.host_b)}
    hosts |= {host.name for host in evidence.hosts} | {dump.host for dump in evidence.dumps}
    hosts |= {port.host for port in evidence.ports} | {matrix.host for matrix in evidence.matrices}
    hosts |= {step.host for step in evidence.steps} | {variable.host for variable in evidence.environment}
    hosts |= {host for fact in evidence.slurm if (host := getattr(fact, "host", ""))}
    hosts |= {host for fact in evidence.torch if (host := getattr(fact, "host", ""))}
    hosts |= {stamp.host for fact in evidence.kernel if (stamp := getattr(fact, "stamp", None)) is not None}
    hosts |= {seen.host for seen in evidence.inspected} | {gpu.host for smi in evidence.smi for gpu in smi.gpus}
    hosts |= {rank.host for report in evidence.ras for c in report.communicators for rank in c.ranks}
    hosts |= {process.host for report in evidence.ras for process in report.processes}
    hosts |= {
        v.value
        for v in evidence.environment
        if v.name in ("HOSTNAME", "HOST", "SLURMD_NODENAME", "MASTER_ADDR", "NODE_NAME")
    }
    return Redactor((host for host in hosts if host), key)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
