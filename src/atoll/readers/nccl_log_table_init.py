"""Sentence shapes of start and end: versions, environment, bootstrap, communicators, groups, memory, RAS.

From the messages of NCCL 2.4 to 2.30 and RCCL. Where releases word the same thing differently the shapes share a name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from atoll.readers.nccl_log_facts import (
    BootstrapInterfaces,
    BootstrapTimings,
    CommInit,
    CommShape,
    DriverVersion,
    EnvSet,
    Fact,
    InitTimings,
    Interface,
    NoInterface,
    TopologyFile,
    Version,
)
from atoll.readers.nccl_log_shapes import KEEP_FEW, Shape

_INTERFACE: Final = re.compile(r"(?:\[\d+\])?([^\s:\[\]]+):(\S+?)<\d+>")


def parse_interfaces(text: str) -> tuple[Interface, ...]:
    """``[0]eth0:10.0.0.1<0> [1]...`` (2.4) or ``eth0:10.0.0.1<0>`` (since 2.9)."""
    return tuple(Interface(match[1], match[2]) for match in _INTERFACE.finditer(text))


def _bootstrap(interfaces: str) -> Fact:
    found = parse_interfaces(interfaces)
    if not found:
        raise ValueError("no interface in the list")
    return BootstrapInterfaces(found)


_STATES: Final = {
    "Init COMPLETE": "complete",
    "Init START": "start",
    "Abort COMPLETE": "abort",
    "Abort START": "abort_start",
    "Destroy COMPLETE": "destroy",
    "Destroy START": "destroy_start",
    "Finalize COMPLETE": "finalize",
    "Finalize START": "finalize_start",
    "Revoke COMPLETE": "revoke",
    "Revoke START": "revoke_start",
}


def _comm(state: str, **fields: Any) -> Fact:
    return CommInit(state=_STATES.get(state, state), **fields)


# What RCCL adds to the sentences it shares with NCCL.
RCCL_TAIL: Final = r"(?: comm <comm:ptr> nRanks <nranks:int>(?: busId <bus_id:hex>)?)?"

_COMM_STATE: Final = r" ?- (?P<state>(?:Init|Abort|Destroy|Finalize|Revoke) (?:COMPLETE|START)).*"

_NUMBER_WITH_STOP: Final = re.compile(r"(-?\d+)\.")


def _env(name: str, value: str) -> Fact:
    """Numbers are printed with a full stop after them: ``NCCL_IB_TC set by environment to 106.``"""
    number = _NUMBER_WITH_STOP.fullmatch(value)
    return EnvSet(name, number[1] if number else value)


INIT_SHAPES: Final[tuple[Shape, ...]] = (
    # --- versions
    Shape("version", r"NCCL version <version:word>\+<runtime:word>", Version, {"library": "NCCL"}),
    Shape("version", r"NCCL version (?P<version>\d[\w.\-]+)(?: .*)?", build=lambda version="": Version(version)),
    Shape("version", r"RCCL version ?:? <version:word>\+<runtime:word>(?: .*)?", Version, {"library": "RCCL"}),
    Shape("version", r"RCCL version ?:? <version:word>(?: .*)?", Version, {"library": "RCCL"}),
    Shape("version", r"(?P<library>[A-Z]{1,4}CCL) version ?:? (?P<version>\d[^\s+]*)(?:\+<runtime:word>)?(?:"
                     r" .*)?", Version),
    Shape("driver_version", r"cudaDriverVersion <version:int>", DriverVersion),
    Shape("driver_version", r"hipDriverVersion <version:int>", DriverVersion),
    Shape("git_version", r"NCCL git version <revision:rest>"),
    Shape("hip_version", r"HIP version ?: <version:rest>"),
    Shape("rocm_version", r"ROCm version ?: <version:rest>"),
    Shape("rccl_path", r"Librccl path ?: <path:rest>"),
    Shape("host_name", r"Hostname ?: <host:rest>"),
    Shape("kernel_version", r"Kernel version ?: <version:rest>"),
    Shape("hip_version", r"Hipruntime version: <version:int>, firmware version: <firmware:int>"),
    Shape("kernel_option", r"(?P<option>CONFIG_\w+)=<value:word> in <path:rest>"),
    Shape("kernel_option", r"(?P<option>Missing \"iommu=pt\"|NUMA auto balancing enabled) ?<text:rest>"),
    Shape("gpu_identity", r"\[node_id = <node:int>; gpu_id = <gpu:int>; <text:rest>"),
    Shape("unroll", r"RCCL Unroll Factor <text:rest>"),
    Shape("side_stream", r"(?:Created|Destroyed) side stream <stream:ptr>.*", keep=KEEP_FEW),
    Shape("rocr_version", r"ROC[rR] version <version:rest>"),
    Shape("rsmi_version", r"rocm_smi_lib: version <version:rest>"),
    Shape("amdsmi_version", r"(?:amdsmi_lib|amd_smi_lib): version <version:rest>"),
    Shape("rsmi", r"initialized internal alternative rsmi functionality"),
    Shape("dmabuf_support", r"Dmabuf feature disabled without <variable:rest>"),
    Shape("dmabuf_support", r"DMA_BUF Support <state:rest>"),
    Shape("dmabuf_support", r"DMA_BUF_SUPPORT <state:rest>"),
    Shape("dmabuf_support", r"DMA-BUF is available on GPU device <dev:int>"),
    Shape("dmabuf_support", r"DMA-BUF is disabled.*"),
    Shape("dmabuf_support", r"DMABuf not supported.*"),
    Shape("gfx_fence", r"GFX9 cheap fence is <state:word>"),
    Shape("kernel_parameter", r"(?:iommu|Kernel|NUMA|numa_balancing) <text:rest>"),
    Shape("launch_mode", r"Launch mode <mode:rest>"),
    Shape("thread_count", r"Using <threads:int> threads, Min Comp Cap <capability:int>(?:, Trees <trees:rest>)?"),
    # --- environment and configuration
    Shape("env_set", r"(?P<name>[A-Z][A-Z0-9_]+) set by environment to ?<value:rest>", build=_env),
    Shape("env_set", r"(?P<name>(?:[A-Z]{1,4}CCL|UCX)_[A-Z0-9_]+) set to ?<value:rest>", EnvSet),
    Shape("env_set", r"Plugin name set by env to <value:rest>", EnvSet, {"name": "NCCL_NET_PLUGIN"}),
    Shape("env_set", r"Environment variable <name:word> set to <value:rest>", EnvSet),
    Shape("env_set", r"RCCL_<key:word>(?: set)? =? ?<value:rest>",
          build=lambda key="", value="": EnvSet(f"RCCL_{key}", value)),
    Shape("env_file", r"Reading (?:config|environment).*"),
    Shape("env_ignored", r"(?P<name>NCCL_[A-Z0-9_]+)=<value:word> is being ignored <reason:rest>"),
    Shape("env_invalid", r"Invalid value <value:word> for (?P<name>NCCL_[A-Z0-9_]+).*"),
    Shape("env_invalid", r"(?P<name>NCCL_[A-Z0-9_]+) <value:int> is (?:not valid|too low), <consequence:rest>"),
    Shape("env_invalid", r"'?(?P<name>NCCL_[A-Z0-9_]+)=<value:int>' is too small.*"),
    Shape("env_invalid", r"(?P<name>NCCL_[A-Z0-9_]+)(?: value)? (?:<value:int> )?is (?:greater|less|not a power|too"
                         r" big)"
                         r" ?<consequence:rest>"),
    Shape("env_invalid", r"(?P<name>NCCL_[A-Z0-9_]+) (?:has invalid value|invalid value|: unknown value|: invalid)"
                         r"<value:rest>"),
    Shape("env_invalid", r"(?P<name>NCCL_[A-Z0-9_]+): unknown value <value:rest>"),
    Shape("env_invalid", r"(?P<name>NCCL_[A-Z0-9_]+) (?:list contains|cannot be used|has been set to|is deprecated)"
                         r" ?<consequence:rest>"),
    Shape("env_invalid", r"Unable to recognize (?P<name>NCCL_[A-Z0-9_]+)=<value:rest>"),
    Shape("env_note", r"(?:Warning: )?ENV:? <name:word> is (?P<state>deprecated|unused|private)\..*"),
    Shape("env_note", r"(?P<name>NCCL_[A-Z0-9_]+) ?=[ ?]*<value:rest>"),
    Shape("env_note", r"PARAM: <text:rest>"),
    Shape("config", r"Comm config (?P<name>[\w ]+?) (?P<how>set to|reset to|is set to|does not match) ?<value:rest>"),
    Shape("config", r"Comm config <name:text> reset to <value:rest>"),
    Shape("config", r"Comm config <name:word> <value:rest>"),
    Shape("config", r"(?P<name>minCTAs|maxCTAs|splitShare|collnetEnable|nvlsCTAs|CTAPolicy) <value:int> is"
                    r" <problem:rest>"),
    Shape("config", r"Parsed environment variable <name:text>=<value:rest>"),
    Shape("config", r"User asked for a (?P<bound>minimum|maximum) of <channels:int> channels, <consequence:rest>"),
    Shape("cuda_limits", r"cudaArch <arch:int> <name:word>(?: smem)? <size:int> exceeds <limit:rest>"),
    Shape("confidential_computing", r"CC (?P<state>On|Off),? <text:rest>"),
    Shape("confidential_computing", r"CC (?P<state>On|Off)"),
    # --- bootstrap
    Shape("bootstrap", r"Bootstrap ?: Using ?<interfaces:rest>", build=_bootstrap),
    Shape("no_interface", r"Bootstrap ?: no socket interface found.*", NoInterface, {"where": "bootstrap"}),
    Shape("no_interface", r"no device found (?:matching|after excluding) <where:rest>", NoInterface),
    Shape("no_interface", r"Net ?: No interface found in the same subnet as remote address <where:rest>", NoInterface),
    Shape("bootstrap_root", r"Bootstrap Root ?: <text:rest>"),
    Shape("bootstrap_timings",
          r"Bootstrap timings total <total_s:float> \(create <create_s:float>, send <send_s:float>, recv"
          r" <recv_s:float>,"
          r" ring <ring_s:float>(?:, delay <delay_s:float>)?\).*", BootstrapTimings),
    Shape("bootstrap_split",
          r"bootstrapSplit: (?:comm <comm:ptr> parent <parent:ptr> )?rank <rank:int> nranks <nranks:int>"
          r" color <color:int> key <key:int> prev <previous:int> next <next:int>(?: - DONE)?"),
    Shape("bootstrap_step", r"bootstrap(?P<step>[A-Z]\w*)(?: ?:| comm| rank)? ?<text:rest>", keep=KEEP_FEW),
    Shape("net_address", r"Net ?: (?P<problem>string is null|No valid|error encountered|unsupported IP|Unsupported"
                         r" address)"
                         r"<text:rest>"),
    Shape("socket_magic", r"Socket handshake magic <magic:word>(?: <text:rest>)?"),
    Shape("proxy_listen", r"proxy listening socket at <address:rest>"),
    # --- communicators
    Shape("comm_state",
          r"(?:\[Rank <launched:int>\] )?(?:<function:word> )?comm <comm:ptr> rank <rank:int> n[rR]anks <nranks:int>"
          r" cudaDev <cuda_dev:int>(?: nvmlDev <nvml_dev:int>)?(?: busId <bus_id:hex>)?"
          r"(?: parent <parent:ptr>(?: (?:splitCount|childCount) <children:int>)? color <color:int> key <key:int>)?"
          r"(?: commId <comm_id:ptr>)?(?: localSize <local_size:int>)?(?: used <used:int> bytes)?(?: on core"
          r" <core:int>)?"
          + _COMM_STATE,
          build=lambda launched=0, children=0, local_size=0, used=0, core=0, **fields: _comm(**fields)),
    Shape("comm_state",
          r"comm <comm:ptr> rank <rank:int> nranks <nranks:int> - (?P<state>(?:COMPLETE|Init COMPLETE|Destroy"
          r" COMPLETE)).*",
          build=_comm),
    Shape("comm_shape",
          r"comm <comm:ptr> rank <rank:int> nRanks <nranks:int> nNodes <nodes:int> localRanks <local_ranks:int>"
          r" localRank <local_rank:int> MNNVL <mnnvl:int>", CommShape),
    Shape("comm_abort", r"Comm <comm:ptr> is in abort state"),
    Shape("comm_abort", r"comm <comm:ptr> has already been destroyed"),
    Shape("comm_revoke", r"CommRevokeAsync (?P<state>START|END) comm <comm:ptr> <text:rest>"),
    Shape("init_timings",
          r"Init timings(?: - <function:word>)?: rank <rank:int> nranks <nranks:int> total <total_s:float>"
          r" \(kernels <kernels_s:float>(?:, alloc <alloc_s:float>)?, bootstrap <bootstrap_s:float>,"
          r" allgathers <allgathers_s:float>, topo <topo_s:float>, graphs <graphs_s:float>,"
          r" connections <connections_s:float>, rest <rest_s:float>\).*",
          build=lambda function="", alloc_s=0.0, rest_s=0.0, **fields: InitTimings(
              function=function.rstrip(":"), **fields)),
    Shape("init_timings", r"timings: rank <rank:int> nranks <nranks:int> P2p connect done in <seconds:float>"),
    Shape("p2p_connect_progress", r"(?:<where:word>)?P2p connect(?::| done) <text:rest>"),
    Shape("split_no_color", r"Rank <rank:int> has color with NCCL_SPLIT_NOCOLOR.*"),
    Shape("comm_hash", r"Rank <rank:int>: Generated commHash <hash:hex> from baseMagic <magic:hex> and newNRanks"
                       r" <nranks:int>"),
    Shape("group_size", r"(?P<call>\w+): group size used is <size:int>"),
    Shape("async_error_set", r"ncclCommSetAsyncError: error comm <comm:ptr> sets state <state:int>"),
    # --- memory and threads
    Shape("memory",
          r"(?P<kind>Cuda|Host|Ib|Mem|CUMEM|CUMEM Host|Cuda Host|GDR|hip|Hip)"
          r" (?P<call>Alloc|Calloc|Realloc|CallocAsync|Host Alloc|AllocAsync) ?<text:rest>", keep=KEEP_FEW),
    Shape("memory_stack", r"memory stack (?P<kind>hunk|non-hunk) malloc\(<size_bytes:int>\)", keep=KEEP_FEW),
    Shape("memory_freed", r"(?P<call>Cuda|Host|hip) (?:Free|free) <text:rest>", keep=KEEP_FEW),
    Shape("memory_buffer", r"(?P<what>netName buffer|SHM path string) Size <size_bytes:int> pointer <pointer:ptr>",
          keep=KEEP_FEW),
    Shape("memory_buffer", r"Persistent (?P<what>\w+ work buf|cudaMallocAsync work buf) Size <size_bytes:int>"
                           r" pointer <pointer:ptr>", keep=KEEP_FEW),
    Shape("memory_buffer", r"Host Calloc Size <size_bytes:int> pointer <pointer:ptr>", keep=KEEP_FEW),
    Shape("shareable_buffer",
          r"(?:CUMEM |MMAP )?(?P<what>[Aa]llocated|[Ii]mported) shareable (?:host )?buffer <text:rest>", keep=KEEP_FEW),
    Shape("shared_memory", r"Allocated <size_bytes:int> bytes of shared memory in <path:rest>", keep=KEEP_FEW),
    Shape("set_access", r"Set Access for buffer <pointer:ptr> size <size_bytes:int> on dev <dev:int>", keep=KEEP_FEW),
    Shape("memory_manager", r"MemManager: <text:rest>", keep=200),
    Shape("symmetric_memory", r"Symmetric (?:VA size=|memory |registration )<text:rest>"),
    Shape("stack_limit", r"Stack size limit \(<limit:text>\) is unsafe.*"),
    Shape("thread_context", r"Unable to create thread context <text:rest>"),
    Shape("nvml_library", r"Loaded NVML from <library:rest>"),
    Shape("work_fifo", r"(?:Disabling work fifo|work FIFO).*"),
    # --- topology files are announced during initialisation
    Shape("topology_file", r"Loading topology file <path:rest>", TopologyFile),
    Shape("topology_loaded", r"Loading (?:unnamed topology|topology <name:rest>|graphs for topology <graph:rest>)"),
    # --- RAS (2.24 and later)
    Shape("ras_listen", r"RAS (?P<kind>network|client) listening socket at <address:rest>"),
    Shape("ras_thread", r"RAS thread (?P<state>started|terminating)"),
    Shape("ras_peer", r"RAS peer <index:int>: socket <address:word> pid <pid:int>, GPUs? <gpus:rest>"),
    Shape("ras_dead_peer", r"RAS declaring peer <peer:text> as DEAD; <text:rest>"),
    Shape("ras_dead_peer", r"RAS dead peer <index:int>: <peer:rest>"),
    Shape("ras_dead_peer", r"RAS handling deadPeer \(addr <peer:text>\)"),
    Shape("ras_timeout", r"RAS <what:text> timeout (?P<severity>warning|error)? ?\(<seconds:int>s\) on <text:rest>"),
    Shape("ras", r"RAS (?P<step>handling|finished|peersHash|deadPeersHash|link|connection|connected|my|new|found"
                 r"|keeping"
                 r"|sending|terminating|trying|already|connInit|keepAlive|enqueued|excessively|failed|not|peer|post-merge"
                 r"|purging|received|socket|unexpected|continuing|init|send|idle|connect|creating|closing|keep-alive"
                 r"|retrying|opening) ?<text:rest>", keep=200),
    Shape("ras", r"RAS (?:closing|creating|\w+) (?:socket )?connection with <text:rest>", keep=200),
    Shape("ras_timeout", r"RAS collective <what:text> timeout (?P<severity>warning|error) \(<seconds:int>s\) --"
                         r" <text:rest>"),
    Shape("ras_problem", r"RAS (?P<what>collective|encountered|invalid|non-terminating|old|overflow|poll|ranks)"
                         r" <text:rest>"),
    Shape("ras_failed", r"(?:Continuing in spite of a RAS|fatal error - RAS) <text:rest>"),
)  # fmt: skip
