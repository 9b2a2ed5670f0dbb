"""Sentence shapes of the network: InfiniBand and RoCE, sockets, plugins, libfabric (AWS OFI), GPUDirect RDMA.

From the messages of NCCL 2.4 to 2.30, RCCL, aws-ofi-nccl and the NVIDIA and Google network plugins. See
``nccl_log_table_init`` for how releases share a name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from atoll.readers.nccl_log_facts import (
    Completion,
    ConnectionLost,
    Fact,
    GdrDistance,
    GdrSupport,
    Hca,
    HcaDetail,
    Hcas,
    IbAsyncEvent,
    LibraryMissing,
    MismatchedCollective,
    NetworkUsed,
    NicDistances,
    NoIbDevice,
    NoInterface,
    OfiNote,
    Plugin,
    SocketInterfaces,
)
from atoll.readers.nccl_log_shapes import KEEP_FEW, Shape
from atoll.readers.nccl_log_table_init import parse_interfaces

# A merged device shows as ``mlx5_0+mlx5_1:1/RoCE`` or ``{[0] mlx5_0:1/RoCE, [1] ...}``; plugins leave ports out.
_MERGED: Final = re.compile(r"\[(\d+)\]=\{([^{}]*)\}")
_HCA: Final = re.compile(r"\[(\d+)\]\s?([^\s:\[\]{},]+):(\d+)(?:/([A-Za-z]+(?:/SHARP)?))?")


def parse_hcas(text: str) -> tuple[Hca, ...]:
    """The devices in a list; those of a merged device share its index and become one, with their names joined."""
    if (
        (merged := list(_MERGED.finditer(text)))
        and (parts := [parse_hcas(match[2]) for match in merged])
        and all(parts)
    ):
        return tuple(
            Hca(int(match[1]), "+".join(hca.name for hca in hcas), hcas[0].port, hcas[0].link_layer)
            for match, hcas in zip(merged, parts, strict=True)
        )
    return tuple(Hca(int(m[1]), m[2], int(m[3]), (m[4] or "").split("/")[0]) for m in _HCA.finditer(text))


def _hcas(devices: str) -> Fact:
    listed, _, oob = devices.partition("OOB ")
    found = parse_hcas(listed)
    if not found and "OOB" not in devices:
        raise ValueError("no device in the list")
    interfaces = parse_interfaces(oob)
    return Hcas(found, "[RO]" in listed, "/SHARP" in listed, interfaces[0] if interfaces else None)


def _sockets(interfaces: str) -> Fact:
    found = parse_interfaces(interfaces)
    if not found:
        raise ValueError("no interface in the list")
    return SocketInterfaces(found)


def _gdr_support(state: str, hca: int = -1, name: str = "", reason: str = "", network: str = "IB") -> Fact:
    return GdrSupport(state == "Enabled", hca, name, reason, network)


def _gdr_distance(state: str, gpu: str, hca: str, **fields: Any) -> Fact:
    return GdrDistance(state == "Enabled", gpu, hca.strip("'"), fields.get("distance", -1), fields.get("threshold", -1))


def _completion(**fields: Any) -> Fact:
    fields.pop("length", None)
    return Completion(**fields)


def _nic_distances(dev: int, bus: int = -1, network: str = "IB", distances: str = "") -> Fact:
    return NicDistances(dev, tuple(distances.split()), network)


_TAIL: Final = r"(?:[ ,(].*)?"

NET_SHAPES: Final[tuple[Shape, ...]] = (
    # --- which network
    Shape("network_used", r"Using network <network:rest>", NetworkUsed),
    Shape("network_plugin", r"(?P<outcome>Initialized|Assigned|Failed to initialize) NET plugin <name:word>(?: to"
                            r" comm)?",
          build=lambda outcome, name: Plugin(
              "NET", {"Initialized": "loaded", "Assigned": "assigned"}.get(outcome, "failed"), name)),
    Shape("network_plugin", r"Using non-device net plugin version <detail:rest>", Plugin,
          {"kind": "NET", "outcome": "loaded"}),
    Shape("network_plugin", r"Using (?:NCCL_NET_DEVICE_UNPACK|internal) net plugin(?: version"
                            r" <detail:int>)?\.?", Plugin,
          {"kind": "NET", "outcome": "internal"}),
    Shape("network_plugin", r"Assigned (?P<kind>GIN|RMA|NET|COLLNET) plugin <name:text> to comm", Plugin,
          {"outcome": "assigned"}),
    Shape("network_plugin", r"Failed to initialize any NET plugin", Plugin, {"kind": "NET", "outcome": "failed"}),
    Shape("network_not_found", r"Error: network <network:text> not found\."),
    Shape("plugin_state", r"(?P<step>Retrieving state for|Initialized state <state:int> for) <name:word>"),
    # --- plugins; the kind is the word before /Plugin
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Could not find:?"
                    r" ?<name:text>(?:\. ?(?P<detail>Using .*)?)?", Plugin,
          {"outcome": "missing"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:dlerror=<detail:text> )?No"
                    r" plugin found(?: \(<name:text>\))?.*", Plugin,
          {"outcome": "missing"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Plugin load (?:\(<name:text>\)"
                    r" )?returned <detail:rest>", Plugin,
          {"outcome": "missing"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Failed|failed) to find"
                    r" <name:word>(?: <detail:rest>)?", Plugin,
          {"outcome": "symbol_missing"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Loaded|loaded)(?:"
                    r" (?:net|collnet|coll|gin|rma|tuner|profiler|env))?"
                    r"(?: plugin)? <name:text>(?: \(<detail:word>\))?", Plugin, {"outcome": "loaded"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Using|Successfully loaded)(?:"
                    r" tuner plugin| external plugin)? <name:text>"
                    r"(?: \(<detail:word>\))?", Plugin, {"outcome": "loaded"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Plugin name set by env to"
                    r" <name:rest>", Plugin, {"outcome": "named"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: Assigned plugin <name:text>(?:"
                    r" type <detail:int>)? to comm", Plugin,
          {"outcome": "assigned"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Closing|Unloading)(?: \w+)?"
                    r" plugin:? <name:rest>", Plugin,
          {"outcome": "closed"}),
    Shape("plugin", r"(?P<kind>NET|COLLNET|TUNER|PROFILER|ENV|GIN|RMA)/Plugin ?: (?:Failed|Unable|Could"
                    r" not|Disabling|Skipping) <detail:rest>", Plugin,
          {"outcome": "failed"}),
    Shape("plugin", r"(?P<kind>NET|TUNER|PROFILER|ENV|GIN|RMA|COLLNET)/Plugin ?: <detail:rest>", Plugin,
          {"outcome": "note"}),
    Shape("plugin", r"P2P plugin <name:rest>", Plugin, {"kind": "NET", "outcome": "loaded"}),
    Shape("plugin", r"Plugin version ?: <name:rest>", Plugin, {"kind": "NET", "outcome": "note"}),
    Shape("plugin", r"NCCL/NET \(shim\) <detail:rest>", Plugin, {"kind": "NET", "outcome": "note"}),
    Shape("plugin", r"Plugin Path ?: <name:rest>", Plugin, {"kind": "NET", "outcome": "loaded"}),
    Shape("plugin", r"(?:Successfully loaded external|External) (?P<kind>\w+) plugin <name:text>(?: is"
                    r" unsupported)?", Plugin,
          {"outcome": "loaded"}),
    Shape("plugin", r"(?:Unloading plugin|Disabling external plugins:?) <name:rest>", Plugin,
          {"kind": "NET", "outcome": "closed"}),
    Shape("plugin", r"(?:Using tuner plugin:?|Opened tuner:?|Closing tuner:?) <name:rest>", Plugin,
          {"kind": "TUNER", "outcome": "loaded"}),
    Shape("plugin", r"Using internal tuner plugin\.?", Plugin, {"kind": "TUNER", "outcome": "internal"}),
    Shape("plugin", r"Tuner: <detail:rest>", Plugin, {"kind": "TUNER", "outcome": "note"}),
    Shape("profiler", r"Profiler (?:event mask|init failed) ?<text:rest>"),
    Shape("pxn_disabled", r"PXN Disabled as plugin is <version:rest>"),
    # --- sockets
    Shape("socket_interfaces", r"NET/Socket ?: Using ?<interfaces:rest>", build=_sockets),
    Shape("socket_interfaces", r"NET ?: Using interface <interfaces:rest>", build=_sockets),
    Shape("socket_interfaces", r"NET/(?:TCPX|FasTrak|FastSocket|TCPXO|FASTRAK)\w* ?:"
                               r" Using ?<interfaces:rest>", build=_sockets),
    Shape("no_interface", r"NET/Socket ?: (?:no interface found|No usable listening interface found).*", NoInterface,
          {"where": "socket"}),
    Shape("socket_threads", r"NET/Socket ?: Using <threads:int> threads and <sockets:int> sockets per thread"),
    Shape("socket_truncated",
          r"NET/Socket ?: peer <peer:word> message truncated ?: receiving <size_bytes:int> bytes instead of"
          r" <other_size_bytes:int>.*", MismatchedCollective),
    Shape("socket_note", r"NET/Socket ?: (?P<text>[a-zA-Z].{3,400})"),
    # --- InfiniBand and RoCE
    Shape("hcas", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: Using ?<devices:rest>", build=_hcas),
    Shape("no_ib_device", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: No device found\.?", NoIbDevice),
    Shape("hca_detail",
          r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: \[<index:int>\] <name:text>:<verbs:text>:<port:int>/<link_layer:word>"
          r" provider=<provider:word>"
          r" speed=<speed_mbit_per_s:int> context=<context:ptr> pciPath=<pci_path:word>(?: ar=<routing:int>)?.*",
          build=lambda verbs="", context=0, routing=0, **fields: HcaDetail(**fields)),
    Shape("virtual_device", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: Made virtual device \[<index:int>\] name=<name:word>"
                            r" speed=<speed:int>"
                            r" ndevs=<devices:int>"),
    Shape("gdr_support", r"NET/(?P<network>\w+) ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA <hca:int>"
                         r" '<name:text>'"
                         r"(?: \(<reason:text>\))?", build=_gdr_support),
    Shape("gdr_support",
          r"NET/(?P<network>IB\w*) ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU <gpu:word> / HCA"
          r" <hca:int> '<name:text>'"
          r"(?: \(<reason:text>\))?", build=lambda gpu="", **fields: _gdr_support(**fields)),
    Shape("gdr_distance",
          r"(?:NET/\w+ ?: )?GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU <gpu:word> / HCA <hca:word>"
          r" ?\(distance <distance:int> (?:[<>]=?|&[lg]t;=?) <threshold:int>\)(?:, read <read:int>)?(?: mode"
          r" <mode:word>)?.*",
          build=_gdr_distance),
    Shape("gdr_distance", r"(?:NET/\w+ ?: )?GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU <gpu:text> / HCA"
                          r" <hca:word>.*",
          build=_gdr_distance),
    Shape("gdr_support", r"(?:NET/\w+ ?: )?GPU Direct RDMA (?P<state>Enabled|Disabled)(?: for (?:dev|HCA) <hca:int>)? ?"
                         r"<reason:rest>", build=_gdr_support),
    Shape("nic_distances", r"CUDA Dev <dev:int>\[<bus:int>\], (?P<network>.{1,60}?) NIC distance ?: <distances:rest>",
          build=_nic_distances),
    Shape("nic_distances", r"NET/(?P<network>IB|Socket): <text:text>distance <distances:rest>",
          build=lambda text="", **fields: _nic_distances(-1, **fields)),
    Shape("gdr_c2c", r"GPU <gpu:word> / HCA <hca:word> connected (?:to CPU <cpu:int> )?via C2C link"),
    Shape("ib_queue_pair",
          r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?:<prefix:text> )?(?:NCCL )?(?:Ib)?Dev <dev:int> Port <port:int>"
          r" (?:qpn|qp_num) <qp:int>"
          r" ?(?:mtu <mtu:int> )?<address:rest>", keep=2000),
    Shape("completion",
          r"NET/[\w/]+ ?: Got completion (?:from peer <peer:word> )?with error <status:int>, opcode <opcode:int>, len"
          r" <length:int>,"
          r" vendor err <vendor_err:int>(?: \(<request:word>\))?(?: hca <hca:word>)?.*", build=_completion),
    Shape("completion",
          r"NET/[\w/]+ ?: Got completion from peer <peer:word> with status=<status:int> opcode=<opcode:int>"
          r" len=<length:int>"
          r" vendor err <vendor_err:int>(?: \(<request:word>\))?(?P<gids>.*?)(?: hca <hca:word>)?",
          build=lambda gids="", **fields: _completion(**fields)),
    Shape("completion",
          r"NET/[\w/]+ ?: Got completion (?:from peer <peer:word> )?with status=<status_name:text>\(<status:int>\)"
          r" opcode=<opcode_name:text>\(<opcode:int>\) <middle:text>vendor[_ ]err[= ]<vendor_err:int>"
          r"(?: \((?P<request>\w+)\)| req_type=(?P<req_type>\w+))?(?P<gids>.*?)(?: hca <hca:word>)?",
          build=lambda opcode_name="", middle="", gids="", request="", req_type="", **fields: _completion(
              request=request or req_type, **fields)),
    Shape("completion", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: Got CQE with error \(devIndex=<index:int>, .*",
          build=lambda index: Completion(-1)),
    Shape("ib_async_event", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?:<device:word> )?[Gg]ot (?:non-fatal )?async (?:error"
                            r" )?event ?:"
                            r" <event:rest>",
          IbAsyncEvent),
    Shape("ib_async_event", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?:<device:word> )?async fatal event(?P<on> on"
                            r" (?:QP|CQ|SRQ))?[^:]*:"
                            r" <event:rest>",
          build=lambda on="", **fields: IbAsyncEvent(fatal=True, **fields)),
    Shape("ib_async_event", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: <device:word> (?P<event>unknown event type .*|GID table"
                            r" changed.*|speed"
                            r" change .*)",
          IbAsyncEvent),
    Shape("ib_mismatch",
          r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: req <request:word> tag <tag:word> peer <peer:word> collective"
          r" mismatch error,"
          r" local size"
          r" <size_bytes:int> remote size <other_size_bytes:int>.*",
          build=lambda request="", tag="", **fields: MismatchedCollective(**fields)),
    Shape("ib_mismatch", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: req <request:word> tag <tag:word> peer <peer:word> posted"
                         r" incorrect receive"
                         r" info: size"
                         r" <size_bytes:int> .*",
          build=lambda request="", tag="", **fields: MismatchedCollective(other_size_bytes=-1, **fields)),
    Shape("ib_incompatible", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?P<problem>Attempted to (?:connect|merge)|Can't"
                             r" (?:connect|merge)|Trying"
                             r" to merge"
                             r"|Local mergedDev|Remote|There are mismatched) ?<text:rest>"),
    Shape("ib_resiliency", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?P<where>\w+): <text:rest>", keep=500),
    Shape("ib_note", r"NET/(?:g?IB|IBext\w*)(?:/GIN)? ?: (?P<text>[A-Za-z'].{3,900})", keep=2000),
    Shape("ib_note", r"NET/MLX5 ?: <text:rest>"),
    Shape("ib_hint", r"HINT: <text:rest>"),
    Shape("ib_library", r"Failed to open libibverbs\.so(?:\[\.1\]|\.1)?(?P<error>.*)", LibraryMissing,
          {"library": "libibverbs.so"}),
    Shape("library_missing", r"Failed to open (?P<library>lib[\w.\-\[\]]+)(?: ?[:\-] ?<error:rest>)?", LibraryMissing),
    Shape("library_symbol", r"(?P<call>ncclOsDl\w+|dlv?sym)(?:\([^)]*\))? failed(?: on)? ?:? ?<symbol:text>"
                            r"(?: -|,) <error:rest>"),
    Shape("gdrcopy", r"(?:GDRCOPY|GDRCopy|GDRDRV)\b ?<text:rest>"),
    Shape("flush", r"(?:Using|Enabled|Disabled) (?:GDR|local|DMA) flush.*"),
    Shape("mr_cache", r"(?:regMr|deregMr|Register ptr|Deregister) <text:rest>", keep=KEEP_FEW),
    # --- network topology seen by the search
    Shape("topology_net", r"(?:TOPO/NET|NET/TOPO) ?: <text:rest>"),
    Shape("topology_nic",
          r"ncclTopoPopulateNics ?: Filled <name:word> in topo with pciPath=<pci_path:text>(?: net=<net:word>"
          r" gin=<gin:word>"
          r" rma=<rma:word>)? keep=<keep:word>(?: coll=<coll:word>)?(?: rail=<rail:int> plane=<plane:int>)?"),
    Shape("net_device_counts", r"Rank <rank:int>: <devices:int> (?P<kind>CollNet|Net) devices"),
    Shape("net_device_counts", r"Rank <rank:int> has <devices:int> local (?P<kind>CollNet|Net) devices \(max"
                               r" <most:int>\)\."),
    Shape("net_device_counts", r"Local (?P<kind>CollNet|Net) device counts across ranks: min <least:int> max"
                               r" <most:int>"),
    Shape("net_device_counts", r"Detected mixed local (?P<kind>CollNet|Net) device counts <text:rest>"),
    Shape("single_multi_port", r"Detected a mix of single and multiple-port NICs.*"),
    Shape("fused_nic", r"(?:Specified fused NIC|Fusing NET devices|Found child net device|Did not find child net"
                       r" device)"
                       r" ?<text:rest>"),
    Shape("nic_speed", r"Could not get speed from <path:text>\. Defaulting to <speed:rest>"),
    # --- peers on the network
    Shape("connection_lost", r"(?:(?P<call>\w+) ?: )?Connection closed by remote peer <peer:rest>", ConnectionLost),
    Shape("connection_lost",
          r"(?P<call>\w+) ?: Call to (?P<verb>recv|send|\w+) (?:from|to) <peer:word> failed ?: <error:rest>",
          build=lambda verb="", **fields: ConnectionLost(**fields)),
    Shape("connection_lost", r"(?P<call>\w+) ?: Call to (?P<peer>.{1,120}?) failed ?: <error:rest>", ConnectionLost),
    Shape("connection_lost", r"Call to recv from <peer:word> failed ?: <error:rest>", ConnectionLost, {"call": "recv"}),
    Shape("connection_lost", r"Net ?: Connection closed by remote peer <peer:rest>", ConnectionLost),
    Shape("connection_lost", r"Net ?: Call to (?P<call>\w+) (?:from|to) <peer:word> failed ?:"
                             r" <error:rest>", ConnectionLost),
    Shape("connect_failed", r"(?:(?P<call>\w+) ?: )?[Cc]onnect to <peer:word> (?:failed|returned) ?:? ?<error:rest>",
          ConnectionLost),
    Shape("connect_failed", r"(?P<call>\w+) to (?P<peer>\S+<\d+>) failed with error <error:rest>", ConnectionLost),
    Shape("connect_retry", r"(?:<call:word> )?(?:Call to connect|connect) returned <error:rest>"),
    Shape("connect_retry", r"(?P<call>socket\w+|nccl\w*Socket\w+) ?: exceeded <text:rest>"),
    Shape("socket_handshake", r"(?P<call>socket\w+|ncclSocket\w+|ncclOsSocket\w+|ncclIpcSocket\w+)(?: from"
                              r" <peer:word>)? ?:?"
                              r" <text:rest>"),
    Shape("message_truncated", r"Message truncated ?: received <received:text> bytes instead of <expected:rest>"),
    # --- libfabric: the AWS OFI plugin and its kin
    Shape("ofi_provider",
          r"NET/OFI Selected [Pp]rovider is <provider:text>(?:, fabric is <value:text>)?(?: \(found <nics:int>"
          r" nics\))?",
          build=lambda provider="", value="", nics=0: OfiNote("provider", "", provider.rstrip(","), str(nics))),
    Shape("ofi_no_provider", r"NET/OFI (?P<text>(?:No eligible providers|Couldn't find any optimal provider"
                             r"|No provider|Failed to find).*)", OfiNote, {"topic": "no_provider"}),
    Shape("ofi_version", r"NET/OFI Initializing aws-ofi-nccl <value:rest>", OfiNote, {"topic": "version"}),
    Shape("ofi_version", r"NET/OFI Using (?:Libfabric|libfabric) version"
                         r" <value:rest>", OfiNote, {"topic": "libfabric"}),
    Shape("ofi_driver", r"NET/OFI Using CUDA (?:driver|runtime) version <value:rest>", OfiNote, {"topic": "cuda"}),
    Shape("ofi_protocol", r"NET/OFI Using transport protocol <value:rest>", OfiNote, {"topic": "protocol"}),
    Shape("ofi_nic_group", r"NET/OFI NIC group <group:int> device #<device:int> <bus:word>"),
    Shape("ofi_platform", r"NET/OFI Running on <value:text> platform(?:,"
                          r" <text:rest>)?", OfiNote, {"topic": "platform"}),
    Shape("ofi_setting", r"NET/OFI Setting (?P<value>[A-Z_0-9]+) ?(?:environment variable )?<text:rest>", OfiNote,
          {"topic": "setting"}),
    Shape("ofi_note", r"NET/(?:OFI|ofi|Libfabric) (?P<text>.{3,1000})", OfiNote, {"topic": "note"}),
    # --- other network plugins: TCPX, FastSocket, UCX, SHARP, RDMA of clouds
    Shape("net_plugin_note", r"NET/(?P<network>(?!g?IB|OFI|Socket|Plugin)[A-Za-z][\w\-]*) ?:? <text:rest>", keep=2000),
    Shape("collnet_plugin", r"(?P<plugin>COLLNET|SHARP|sharp|Sharp)[:/ ] ?<text:rest>"),
    Shape("libfabric", r"(?:OFI|libfabric)[: ]<text:rest>"),
    Shape("ucx", r"(?:UCX|NET/UCX)[: ]<text:rest>"),
)  # fmt: skip
