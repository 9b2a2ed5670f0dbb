"""Network rules, part one: which network carries the data, and whether it should be another (N01 to N08, N12 to N16).

An error on the wire is in ``rules_fabric.py``. All of these rules are silent on one node: a missing InfiniBand is
then no fault, whatever the log complains about (W01 says so when asked).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.lint_env import lint_environment
from atoll.doctor.rule import Rule
from atoll.readers.ibstat import RdmaPort
from atoll.readers.nccl_log_facts import (
    BootstrapInterfaces,
    Hca,
    HcaDetail,
    Hcas,
    Interface,
    LibraryMissing,
    NetworkUsed,
    NoIbDevice,
    NoInterface,
    OfiNote,
    Plugin,
    SocketInterfaces,
    Statement,
    SystemCallFailed,
)
from atoll.units import format_bandwidth

VIRTUAL: Final = re.compile(r"(?:docker|br-|veth|flannel|cni|virbr|cali|vxlan|tunl|kube|weave|lxc|podman|cilium)")
"""Interfaces that exist on every node with the same address, or that lead into containers."""
MANAGEMENT: Final = re.compile(r"(?:eno\d|em\d|eth0$|mgmt|mgt|bmc|idrac|ipmi|usb|wl|oob)", re.IGNORECASE)
FABRIC: Final = re.compile(r"(?:ib\d|ibp|ibs|hsn|roce|rdma|bond|mlx|ens\d|enp\d+s\d|eth[1-9])", re.IGNORECASE)
MANY_HCAS: Final = 16
BUILT_IN: Final = ("IB", "Socket")
"""Networks that NCCL brings itself, which recent versions call plugins too."""
TOLD_LINTS: Final = ("E01", "E03", "E04", "E05", "E07")
"""Mistakes; what is only a cost (E06) or a matter of versions is for `atoll lint env`."""


def _data_interfaces(evidence: Evidence) -> Iterable[tuple[tuple[Interface, ...], Statement]]:
    """The interfaces that carry data: only where sockets are the network."""
    if any(network == "Socket" for network in evidence.networks):
        yield from ((fact.interfaces, statement) for fact, statement in evidence.said(SocketInterfaces))


def _socket_statements(evidence: Evidence) -> list[Statement]:
    return [statement for fact, statement in evidence.said(NetworkUsed) if fact.network.strip() == "Socket"]


def _has_rdma(evidence: Evidence, hosts: Iterable[str]) -> RdmaPort | None:
    """A port that is up on one of ``hosts`` (or on a host that is not named)."""
    known = set(hosts)
    return next(
        (p for p in evidence.ports if p.state == "Active" and (not p.host or not known or p.host in known)), None
    )


def _ipoib(evidence: Evidence, hosts: Iterable[str]) -> Statement | None:
    """A statement that lists an IP-over-InfiniBand interface on one of ``hosts``: then there is an adapter."""
    wanted = set(hosts)
    lists = [(fact.interfaces, statement) for fact, statement in evidence.said(SocketInterfaces)]
    lists += [(fact.interfaces, statement) for fact, statement in evidence.said(BootstrapInterfaces)]
    for interfaces, statement in lists:
        has_ipoib = any(re.match(r"ib(?:\d|p|s)", interface.name) for interface in interfaces)
        if has_ipoib and wanted & set(evidence.nccl.hosts_of(statement)):
            return statement
    return None


def _n01(evidence: Evidence) -> Iterable[Hit]:
    if not evidence.is_multi_node:
        return
    for interfaces, statement in _data_interfaces(evidence):
        names = [interface.name for interface in interfaces]
        if not names or any(VIRTUAL.match(name) or name == "lo" for name in names[:1]):
            continue
        better = [name for name in names[1:] if FABRIC.match(name) and not VIRTUAL.match(name)]
        port = _has_rdma(evidence, evidence.nccl.hosts_of(statement))
        ask = evidence.setting("NCCL_SOCKET_IFNAME")
        named = ask if ask is not None and not names[0].startswith("eth") else None
        if MANAGEMENT.match(names[0]) and (better or port is not None or named is not None):
            because = (
                f"{better[0]} is there too" if better else f"{port.adapter} is up" if port is not None
                else f"NCCL_SOCKET_IFNAME={ask.value if ask else ''} chose it"
            )  # fmt: skip
            yield Hit(
                f"data between nodes goes over the management interface {names[0]}, although {because}",
                merge_sources([[statement.source], [s.source for s in _socket_statements(evidence)],
                               [ask.source] if ask else [], [port.source] if port else []]),
                evidence.speakers_of(statement),
            )  # fmt: skip


def _n02(evidence: Evidence) -> Iterable[Hit]:
    if not evidence.is_multi_node:
        return
    lists = [(fact.interfaces, statement, "bootstrap") for fact, statement in evidence.said(BootstrapInterfaces)]
    lists += [(interfaces, statement, "data") for interfaces, statement in _data_interfaces(evidence)]
    for interfaces, statement, use in lists:
        wrong = [i for i in interfaces if VIRTUAL.match(i.name) or i.name == "lo" or i.address.startswith("127.")]
        if not wrong:
            continue
        first = wrong[0] is interfaces[0]
        yield Hit(
            f"the {use} network {'is' if first else 'includes'} {wrong[0].name} ({wrong[0].address}), which "
            "does not reach "
            "other nodes",
            (statement.source,),
            evidence.speakers_of(statement),
            Severity.FATAL if first else Severity.SLOW,
            Confidence.HIGH if first else Confidence.MEDIUM,
        )


def _n03(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(NoInterface):
        asked = evidence.settings("NCCL_SOCKET_IFNAME")
        said = f"; NCCL_SOCKET_IFNAME is {asked[0].value}" if asked else ""
        yield Hit(
            f"no interface matches for {fact.where}{said}",
            merge_sources([[statement.source], [setting.source for setting in asked]]),
            evidence.speakers_of(statement),
        )


def _n04(evidence: Evidence) -> Iterable[Hit]:
    if not evidence.is_multi_node:
        return
    for fact, statement in evidence.said(LibraryMissing):
        if "ibverbs" not in fact.library:
            continue
        hosts = evidence.nccl.hosts_of(statement)
        port, ipoib = _has_rdma(evidence, hosts), _ipoib(evidence, hosts)
        if port is None and ipoib is None:
            continue
        seen = f"ibstat shows {port.adapter} up" if port is not None else "an IP-over-InfiniBand interface is listed"
        yield Hit(
            f"libibverbs cannot be opened, although {seen}",
            merge_sources([[statement.source], [port.source] if port else [], [ipoib.source] if ipoib else []]),
            evidence.speakers_of(statement),
        )


def _n05(evidence: Evidence) -> Iterable[Hit]:
    if not evidence.is_multi_node:
        return
    without_library = {
        host
        for fact, statement in evidence.said(LibraryMissing)
        if "ibverbs" in fact.library
        for host in evidence.nccl.hosts_of(statement)
    }
    disabled = evidence.setting("NCCL_IB_DISABLE")
    if disabled is not None and disabled.value == "1":
        return
    having = {
        host for fact, statement in evidence.said(Hcas) if fact.hcas for host in evidence.nccl.hosts_of(statement)
    }
    for _, statement in evidence.said(NoIbDevice):
        hosts = [host for host in evidence.nccl.hosts_of(statement) if host not in without_library]
        if not hosts:
            continue
        port = _has_rdma(evidence, hosts)
        others = sorted(having - set(hosts))
        wanted = evidence.setting("NCCL_IB_HCA")
        if port is None and not others:
            continue
        seen = f"ibstat shows {port.adapter} up" if port is not None else f"{', '.join(others[:3])} has adapters"
        asked = f"; NCCL_IB_HCA={wanted.value} may exclude all of them" if wanted else ""
        yield Hit(
            f"no RDMA adapter is visible to NCCL, although {seen}{asked}",
            merge_sources([[statement.source], [port.source] if port else [], [wanted.source] if wanted else []]),
            evidence.speakers_of(statement),
        )


def _n06(evidence: Evidence) -> Iterable[Hit]:
    for setting in evidence.settings("NCCL_IB_DISABLE"):
        if setting.value == "1" and evidence.is_multi_node:
            yield Hit(
                "NCCL_IB_DISABLE=1: data between nodes goes over TCP sockets",
                merge_sources([[setting.source], [s.source for s in _socket_statements(evidence)]]),
                tuple(Subject(variable="NCCL_IB_DISABLE", host=host) for host in setting.hosts[:4])
                or (Subject(variable="NCCL_IB_DISABLE"),),
            )
            return


def _n07(evidence: Evidence) -> Iterable[Hit]:
    sockets = _socket_statements(evidence)
    for fact, statement in evidence.said(OfiNote):
        if fact.topic == "no_provider" and (sockets or evidence.is_multi_node):
            yield Hit(
                "the libfabric plugin finds no provider" + (", so data goes over TCP sockets" if sockets else ""),
                merge_sources([[statement.source], [s.source for s in sockets]]),
                evidence.speakers_of(statement),
            )
            return


def _n08(evidence: Evidence) -> Iterable[Hit]:
    found: dict[str, list[tuple[str, Statement]]] = {"loaded": [], "missing": []}
    for fact, statement in evidence.said(Plugin):
        outcome = {"loaded": "loaded", "named": "", "missing": "missing", "failed": "missing"}.get(fact.outcome, "")
        if fact.kind == "NET" and outcome and fact.name not in BUILT_IN:
            found[outcome] += [(host, statement) for host in evidence.nccl.hosts_of(statement)]
    having = {host for host, _ in found["loaded"]}
    lacking = {host: statement for host, statement in found["missing"] if host not in having}
    if having and lacking:
        yield Hit(
            f"a network plugin is loaded on {', '.join(sorted(having)[:3])} and missing on "
            f"{', '.join(sorted(lacking)[:3])}",
            merge_sources([[s.source for _, s in found["loaded"]], [s.source for s in lacking.values()]]),
            tuple(Subject(host=host) for host in sorted(lacking)[:8]),
        )


def _layers(hcas: Iterable[Hca]) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for hca in hcas:
        if hca.link_layer:
            layers.setdefault(hca.link_layer, []).append(hca.name)
    return layers


def _n12(evidence: Evidence) -> Iterable[Hit]:
    listed = False
    mixed: list[tuple[Hcas, Statement]] = []
    for fact, statement in evidence.said(Hcas):
        listed = listed or bool(fact.hcas)
        if len(_layers(fact.hcas)) > 1 and evidence.num_nodes != 1:
            mixed.append((fact, statement))
    if mixed:
        layers = _layers(mixed[0][0].hcas)
        few = min(layers, key=lambda layer: len(layers[layer]))
        minority = {hca.index for fact, _ in mixed for hca in fact.hcas if hca.link_layer == few}
        used = [c for c in evidence.network_connections if c.via.nic in minority]
        said = ""
        if used:
            nic = evidence.hca_names.get((evidence.nccl.speakers[used[0].speaker].host, used[0].via.nic), few)
            said = f"; ranks {used[0].src} and {used[0].dst} are joined through {nic}"
        hosts = sorted({host for _, statement in mixed for host in evidence.nccl.hosts_of(statement)})
        ranks = list(dict.fromkeys(rank for c in used for rank in (c.src, c.dst)))
        idle = bool(evidence.network_connections) and not used
        yield Hit(
            f"on {', '.join(hosts[:4])} the list of adapters mixes "
            + " and ".join(f"{layer} ({', '.join(names)})" for layer, names in layers.items())
            + (said or ("; no connection uses the fewer" if idle else "")),
            merge_sources([[statement.source for _, statement in mixed], [c.source for c in used]]),
            tuple(evidence.place(rank) for rank in ranks[:4]) or evidence.speakers_of(mixed[0][1], 4),
            Severity.NOTICE if idle else None,
        )
    if listed:
        return
    by_host: dict[str, list[RdmaPort]] = {}
    for port in evidence.ports:
        if port.state == "Active":
            by_host.setdefault(port.host or port.source.file, []).append(port)
    for ports in by_host.values():
        kinds = {port.link_layer for port in ports} - {""}
        rates = {port.rate_bytes_per_s for port in ports if port.rate_bytes_per_s}
        if len(kinds) > 1 or len(rates) > 1:
            said = "; ".join(
                f"{port.adapter} {port.link_layer} {port.rate_bytes_per_s * 8 / 1e9:g} Gb/s"
                for port in ports
                if port.rate_bytes_per_s
            )
            yield Hit(
                f"adapters of different fabrics or rates are up in one host: {said}",
                tuple(port.source for port in ports),
                tuple(Subject(host=port.host, nic=port.adapter, file=port.source.file) for port in ports[:8]),
                Severity.NOTICE,
                Confidence.MEDIUM,
            )


def _n13(evidence: Evidence) -> Iterable[Hit]:
    parents: dict[str, int] = {}
    for detail, _ in evidence.said(HcaDetail):
        parent = detail.pci_path.rsplit("/", 1)[0]
        parents[parent] = parents.get(parent, 0) + 1
    for fact, statement in evidence.said(Hcas):
        if len(fact.hcas) <= MANY_HCAS:
            continue
        crowded = max(parents.values(), default=0)
        yield Hit(
            f"NCCL sees {len(fact.hcas)} adapters" + (f", {crowded} of them on one PCI parent" if crowded > 2 else "")
            + ": virtual functions, most likely",
            (statement.source,),
            evidence.speakers_of(statement, 4),
            confidence=Confidence.HIGH if crowded > 2 else Confidence.MEDIUM,
        )  # fmt: skip
        return


def _n14(evidence: Evidence) -> Iterable[Hit]:
    for port in evidence.ports:
        # An Ethernet port has no subnet manager and prints 0 too.
        if port.state == "Initializing" and port.physical_state == "LinkUp" and not port.sm_lid and (
            port.link_layer != "Ethernet"
        ):  # fmt: skip
            yield Hit(
                f"port {port.port} of {port.adapter} has a link, but waits for a subnet manager",
                (port.source,),
                (Subject(host=port.host, nic=port.adapter, file=port.source.file),),
            )


def _n15(evidence: Evidence) -> Iterable[Hit]:
    groups: dict[tuple[str, ...], list[RdmaPort]] = {}
    for port in evidence.ports:
        if port.state == "Active" and port.rate_bytes_per_s:
            groups.setdefault(("name", port.adapter, str(port.port)), []).append(port)
            if port.link_layer == "InfiniBand" and port.sm_lid:
                groups.setdefault(("subnet", port.source.file, port.adapter_type, str(port.sm_lid)), []).append(port)
    told: set[tuple[str, str]] = set()
    for key, ports in groups.items():
        files = {port.source.file for port in ports}
        if key[0] == "name" and len(files) < 2:
            continue
        rates = sorted(port.rate_bytes_per_s or 0.0 for port in ports)
        usual = rates[len(rates) // 2] if len(rates) > 2 else rates[-1]
        for port in ports:
            rate = port.rate_bytes_per_s or 0.0
            if rate < usual and (port.source.file, port.adapter) not in told:
                told.add((port.source.file, port.adapter))
                yield Hit(
                    f"{port.adapter} of {port.host or port.source.file} runs at {format_bandwidth(rate)}, its peers at "
                    f"{format_bandwidth(usual)}",
                    (port.source, next(p.source for p in ports if p.rate_bytes_per_s == usual)),
                    (Subject(host=port.host, nic=port.adapter, file=port.source.file),),
                )
    speeds: dict[str, dict[int, Statement]] = {}
    for detail, statement in evidence.said(HcaDetail):
        speeds.setdefault(f"{detail.name}:{detail.port}", {}).setdefault(detail.speed_mbit_per_s, statement)
    for name, by_speed in speeds.items():
        if len(by_speed) > 1:
            low, high = min(by_speed), max(by_speed)
            yield Hit(
                f"{name} runs at {low / 1000:g} Gb/s on {', '.join(evidence.nccl.hosts_of(by_speed[low])[:3])} and at "
                f"{high / 1000:g} Gb/s elsewhere",
                (by_speed[low].source, by_speed[high].source),
                tuple(Subject(host=host, nic=name) for host in evidence.nccl.hosts_of(by_speed[low])[:4]),
            )


def _n16(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(SystemCallFailed):
        is_memory = "memory" in fact.error.lower() or "ENOMEM" in fact.error
        if fact.call.startswith("ibv_") and ("create_qp" in fact.call or "reg_mr" in fact.call or is_memory) and (
            is_memory or "create_qp" in fact.call
        ):  # fmt: skip
            yield Hit(
                f"{fact.call} fails: {fact.error or 'no resources'}",
                (statement.source,),
                evidence.speakers_of(statement),
            )


def _n23(evidence: Evidence) -> Iterable[Hit]:
    version = ".".join(map(str, evidence.nccl_version))
    for lint in lint_environment(evidence.all_settings(), version):
        if lint.id in TOLD_LINTS and lint.severity >= Severity.SLOW:
            yield Hit(
                f"{lint.what} ({lint.id})",
                (lint.source,) if lint.source is not None else (),
                (Subject(variable=lint.variable),),
                fix=lint.fix,
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "N01", "Data goes over the management network",
        "Traffic between nodes uses an interface meant for management, while a faster one is there.",
        "NCCL's `NET/Socket : Using` list with `Using network Socket`, more than one node, and a better "
        "interface, an active "
        "RDMA port or `NCCL_SOCKET_IFNAME`.",
        "A bootstrap over the management interface is fine as long as data goes over InfiniBand. One node never fires.",
        Severity.SLOW, Role.ROOT,
        "Set `NCCL_SOCKET_IFNAME=<fabric interface>` (`=name` for exactly that one, `^name` to exclude), or "
        "repair RDMA.",
        _n01, collect="`ip -br addr` and `ethtool <interface>` of one node",
    ),
    Rule(
        "N02", "A container or loopback interface is chosen",
        "An interface that exists on each node with an address of its own (docker0, a bridge, veth, lo) "
        "carries traffic that "
        "should reach other nodes.",
        "The interface lists of bootstrap, and of data where sockets carry it, with more than one node.",
        "One node may list any number of bridges.",
        Severity.FATAL, Role.ROOT,
        "`NCCL_SOCKET_IFNAME=^lo,docker,veth,br-,flannel,cni,virbr`, or name the right interface.",
        _n02, Confidence.HIGH, explains=("N11", "H02", "H12", "P06", "U01", "N01"),
    ),
    Rule(
        "N03", "NCCL_SOCKET_IFNAME matches nothing",
        "No interface of this host has a name that the filter allows, so NCCL cannot start.",
        "`no socket interface found`, with `NCCL_SOCKET_IFNAME set by environment` where logged.",
        "None: the line says it.",
        Severity.FATAL, Role.ROOT,
        "Name the interface per node (/etc/nccl.conf), or use a prefix that all nodes share.",
        _n03, Confidence.HIGH, explains=("N11", "H01", "H12", "P06", "U01", "H04"),
    ),
    Rule(
        "N04", "The RDMA library is missing in the container",
        "libibverbs cannot be opened although the host has adapters, so data goes over sockets.",
        "`Failed to open libibverbs.so`, more than one node, and adapters in ibstat or an IP-over-InfiniBand "
        "interface.",
        "Silent on one node, and where nothing shows that there are adapters.",
        Severity.SLOW, Role.ROOT,
        "Install rdma-core in the image, pass /dev/infiniband in, and raise memlock.",
        _n04, Confidence.HIGH, collect="`ibstat` inside and outside the container", explains=("N01", "N05"),
    ),
    Rule(
        "N05", "No RDMA adapter is visible",
        "NCCL finds no InfiniBand or RoCE device although the host, or other hosts of the job, have some.",
        "`NET/IB : No device found.` with an active port in ibstat, or on some hosts only.",
        "Silent on one node and in clouds without RDMA (nobody has an adapter).",
        Severity.SLOW, Role.ROOT,
        "Pass the devices in (`--device=/dev/infiniband`, device plugin); check that `NCCL_IB_HCA` does not "
        "exclude all.",
        _n05, Confidence.HIGH, collect="`ibstat` and `ls /dev/infiniband` on that host", explains=("N01",),
    ),
    Rule(
        "N06", "InfiniBand is switched off by a variable",
        "`NCCL_IB_DISABLE=1` makes NCCL use TCP between nodes.",
        "The variable in NCCL's log or an environment file, with more than one node.",
        "It may be deliberate; on one node it does nothing.",
        Severity.SLOW, Role.ROOT, "Unset `NCCL_IB_DISABLE`.", _n06, Confidence.HIGH, explains=("N01",),
    ),
    Rule(
        "N07", "The libfabric plugin fell back to sockets",
        "The OFI plugin is loaded but has no provider (EFA, CXI), and NCCL silently uses sockets.",
        "`NET/OFI No eligible providers`, then `Using network Socket`.",
        "Silent when a provider is selected.",
        Severity.SLOW, Role.ROOT,
        "Attach the EFA device and its security group; set `NCCL_NET=\"AWS Libfabric\"` so that a fallback "
        "fails loudly.",
        _n07, Confidence.HIGH, collect="`fi_info -p efa` on that host", explains=("N01",),
    ),
    Rule(
        "N08", "The network plugin is missing on some hosts",
        "Hosts that load a network plugin cannot talk to hosts that do not.",
        "A plugin loaded on one host and `Could not find: libnccl-net.so` on another.",
        "Missing everywhere is fine.",
        Severity.FATAL, Role.ROOT, "Use one image on all hosts.", _n08, Confidence.HIGH,
        explains=("N11", "H02", "H12", "P06", "U01"),
    ),
    Rule(
        "N12", "Adapters of different fabrics are mixed",
        "The list of adapters holds InfiniBand and RoCE, or different rates; NCCL pairs them by index, and pairs on "
        "different fabrics do not reach each other.",
        "`NET/IB : Using` with both link layers, or ibstat with several layers or rates in one host.",
        "Bonds may be meant. ibstat alone is a notice: NCCL may have been told which to use.",
        Severity.FATAL, Role.ROOT, "`NCCL_IB_HCA=<adapters of one fabric>`.", _n12, Confidence.MEDIUM,
        collect="`ibstat` of both hosts, and which adapters reach each other", explains=("N11", "H02", "H12",
        "P06", "U01"),
    ),
    Rule(
        "N13", "Virtual functions flood the list of adapters",
        "NCCL sees more adapters than a host has; rings are built over functions of one physical port.",
        f"More than {MANY_HCAS} adapters in `NET/IB : Using`; many on one PCI parent.",
        "Hosts with 16 real adapters exist; more do not.",
        Severity.SLOW, Role.ROOT, "Filter with `NCCL_IB_HCA`, or let the device plugin pass one function.", _n13,
    ),
    Rule(
        "N14", "No subnet manager",
        "An InfiniBand port has its physical link but no subnet manager gives it an address.",
        "ibstat: `State: Initializing`, `Physical state: LinkUp`, `SM lid: 0`.",
        "Ethernet ports have no subnet manager.",
        Severity.FATAL, Role.ROOT, "Start opensm, or UFM, on the fabric.", _n14, Confidence.HIGH,
        collect="`sminfo` on that host", explains=("N05", "N01"),
    ),
    Rule(
        "N15", "A port runs below its rate",
        "A cable, transceiver or FEC setting has made a port train at a lower rate than its peers.",
        "ibstat rates of the same adapter on other hosts, or of the same subnet in one host; NCCL's own list "
        "of speeds.",
        "Only compared within one job.",
        Severity.SLOW, Role.ROOT, "Reseat or replace the cable or optic; check FEC and the switch port.", _n15,
        collect="`mlxlink -d <adapter> -m`", explains=("N19",),
    ),
    Rule(
        "N16", "Locked memory or queue pairs run out",
        "The RDMA library cannot register memory or create queue pairs.",
        "`Call to ibv_reg_mr ... failed with error Cannot allocate memory`, `ibv_create_qp failed`.",
        "None: the line says it.",
        Severity.FATAL, Role.ROOT, "`ulimit -l unlimited` for the job (systemd, Slurm and Docker each have their own).",
        _n16, Confidence.HIGH, explains=("N11", "H12", "P06", "U01"),
    ),
    Rule(
        "N23", "Variables fight each other or are misspelt",
        "The environment does not do what it seems to: a name that nothing reads, a value that is not read, "
        "two settings that "
        "exclude each other.",
        "Environment files and NCCL's `set by environment` lines, as `atoll lint env` judges them (E01, E03, "
        "E04, E05, E07).",
        "Costs that may be meant (E06) and versions (E02) are left to `atoll lint env`.",
        Severity.NOTICE, Role.EITHER, "See `atoll lint env FILE`.", _n23,
    ),
)  # fmt: skip
