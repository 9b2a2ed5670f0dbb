"""The environment variables that NCCL and torch.distributed read, with the versions that read them.

``since`` is the first NCCL (or, for ``TORCH_``, PyTorch) version that knows the variable, ``until`` the first one
that no longer does; empty means as long as there is a record. From the "Environment Variables" page of the NCCL user
guide in its versions 2.3 to 2.28, the ``NCCL_PARAM`` declarations of the sources, and the ``ProcessGroupNCCL`` page
of PyTorch.

``kind`` is what a value may be: ``bool`` (0 or 1), ``int``, ``size`` (bytes), ``path``, ``words`` (one of ``words``),
``list`` (comma-separated ``words``, perhaps behind ``^``) or ``text``. ``left_on`` says why a variable that someone set
for an experiment costs speed when it stays.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class Variable(msgspec.Struct, frozen=True):
    """One variable; see the module's text."""

    name: str
    kind: str = "text"
    since: str = ""
    until: str = ""
    words: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    replaced_by: str = ""
    left_on: tuple[str, str] = ("", "")
    """(value, what it costs)."""


_LEVELS: Final = ("LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "NODE", "SYS", "C2C", "0", "1", "2", "3", "4", "5")
_ALGORITHMS: Final = ("Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT", "Auto", "MSCCL")
"""MSCCL is read by Microsoft's fork and by RCCL."""

_NCCL: Final[tuple[Variable, ...]] = (
    Variable("NCCL_P2P_DISABLE", "bool", left_on=("1", "GPUs of one node talk through host memory instead of "
                                                       "NVLink or PCIe")),
    Variable("NCCL_P2P_LEVEL", "words", "2.3.4", words=_LEVELS),
    Variable("NCCL_P2P_DIRECT_DISABLE", "bool", "2.15"),
    Variable("NCCL_P2P_READ_ENABLE", "int", "2.8"),
    Variable("NCCL_P2P_USE_CUDA_MEMCPY", "bool", "2.16"),
    Variable("NCCL_SHM_DISABLE", "bool", left_on=("1", "GPUs without P2P in one node talk through the network")),
    Variable("NCCL_SHM_USE_CUDA_MEMCPY", "bool", "2.16"),
    Variable("NCCL_SHM_MEMCPY_MODE", "int", "2.16"),
    Variable("NCCL_SHM_LOCALITY", "int", "2.7"),
    Variable("NCCL_SOCKET_IFNAME"),
    Variable("NCCL_SOCKET_FAMILY", "words", "2.3", words=("AF_INET", "AF_INET6")),
    Variable("NCCL_SOCKET_RETRY_CNT", "int", "2.24"),
    Variable("NCCL_SOCKET_RETRY_SLEEP_MSEC", "int", "2.24"),
    Variable("NCCL_SOCKET_POLL_TIMEOUT_MSEC", "int", "2.27"),
    Variable("NCCL_SOCKET_NTHREADS", "int", "2.4.8", minimum=1, maximum=16),
    Variable("NCCL_NSOCKS_PERTHREAD", "int", "2.4.8", minimum=1, maximum=64),
    Variable("NCCL_DEBUG", "words", words=("VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE"),
             left_on=("TRACE", "every call is logged")),
    Variable("NCCL_DEBUG_FILE", "path", "2.2.12"),
    Variable("NCCL_DEBUG_SUBSYS", "list", "2.3.4", words=(
        "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP",
        "REG", "PROFILE", "RAS", "VERBS", "GDR", "ALL")),
    Variable("NCCL_DEBUG_TIMESTAMP_FORMAT", "text", "2.26"),
    Variable("NCCL_DEBUG_TIMESTAMP_LEVELS", "list", "2.26", words=("VERSION", "WARN", "INFO", "ABORT", "TRACE", "ALL")),
    Variable("NCCL_WARN_ENABLE_DEBUG_INFO", "bool", "2.17"),
    Variable("NCCL_BUFFSIZE", "size", "2.0"),
    Variable("NCCL_LL_BUFFSIZE", "size", "2.4"),
    Variable("NCCL_LL128_BUFFSIZE", "size", "2.5"),
    Variable("NCCL_NTHREADS", "int", minimum=64, maximum=1024),
    Variable("NCCL_LL128_NTHREADS", "int", "2.5"),
    Variable("NCCL_MAX_NRINGS", "int", "2.0.5", "2.5", replaced_by="NCCL_MAX_NCHANNELS"),
    Variable("NCCL_MIN_NRINGS", "int", "2.0.5", "2.5", replaced_by="NCCL_MIN_NCHANNELS"),
    Variable("NCCL_RINGS", "text", "2.0", "2.18"),
    Variable("NCCL_MAX_NCHANNELS", "int", "2.5", minimum=1, maximum=64),
    Variable("NCCL_MIN_NCHANNELS", "int", "2.5", minimum=1, maximum=64),
    Variable("NCCL_MAX_CTAS", "int", "2.17", minimum=1, maximum=64),
    Variable("NCCL_MIN_CTAS", "int", "2.17", minimum=1, maximum=64),
    Variable("NCCL_CGA_CLUSTER_SIZE", "int", "2.17", minimum=0, maximum=8),
    Variable("NCCL_MAX_P2P_NCHANNELS", "int", "2.8"),
    Variable("NCCL_MIN_P2P_NCHANNELS", "int", "2.8"),
    Variable("NCCL_NCHANNELS_PER_PEER", "int", "2.8"),
    Variable("NCCL_NCHANNELS_PER_NET_PEER", "int", "2.12"),
    Variable("NCCL_CHECKS_DISABLE", "bool", "2.0.5", "2.2.12", replaced_by="NCCL_CHECK_POINTERS"),
    Variable("NCCL_CHECK_POINTERS", "bool", "2.2.12", left_on=("1", "every call checks its pointers")),
    Variable("NCCL_CHECK_MODE", "words", "2.29", words=("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL")),
    Variable("NCCL_LAUNCH_MODE", "words", "2.1", words=("PARALLEL", "GROUP")),
    Variable("NCCL_LAUNCH_ORDER_IMPLICIT", "bool", "2.26"),
    Variable("NCCL_LAUNCH_RACE_FATAL", "bool", "2.26"),
    Variable("NCCL_IB_DISABLE", "bool", left_on=("1", "nodes talk over TCP sockets instead of InfiniBand or RoCE")),
    Variable("NCCL_IB_HCA"),
    Variable("NCCL_IB_TIMEOUT", "int", minimum=0, maximum=31),
    Variable("NCCL_IB_RETRY_CNT", "int", "2.1.15", minimum=0, maximum=7),
    Variable("NCCL_IB_GID_INDEX", "int", "2.1.4", minimum=-1, maximum=255),
    Variable("NCCL_IB_ADDR_FAMILY", "words", "2.21", words=("AF_INET", "AF_INET6")),
    Variable("NCCL_IB_ADDR_RANGE", "text", "2.21"),
    Variable("NCCL_IB_ROCE_VERSION_NUM", "int", "2.21", minimum=1, maximum=2),
    Variable("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "int", "2.24"),
    Variable("NCCL_IB_IS_GLOBAL", "bool", "2.24"),
    Variable("NCCL_IB_SUBNET_AWARE_ROUTING", "bool", "2.29"),
    Variable("NCCL_IB_SL", "int", "2.1.4", minimum=0, maximum=15),
    Variable("NCCL_IB_TC", "int", "2.1.15", minimum=0, maximum=255),
    Variable("NCCL_IB_FIFO_TC", "int", "2.22", minimum=0, maximum=255),
    Variable("NCCL_IB_PKEY", "int", "2.15"),
    Variable("NCCL_IB_USE_INLINE", "bool", "2.15"),
    Variable("NCCL_IB_AR_THRESHOLD", "size", "2.6"),
    Variable("NCCL_IB_CUDA_SUPPORT", "bool", "2.0", "2.4", replaced_by="NCCL_NET_GDR_LEVEL"),
    Variable("NCCL_IB_GDR_LEVEL", "words", "2.3.4", "2.4", words=_LEVELS, replaced_by="NCCL_NET_GDR_LEVEL"),
    Variable("NCCL_IB_GDR_FLUSH_DISABLE", "bool", "2.8"),
    Variable("NCCL_IB_QPS_PER_CONNECTION", "int", "2.10", minimum=1, maximum=128),
    Variable("NCCL_IB_SPLIT_DATA_ON_QPS", "bool", "2.18"),
    Variable("NCCL_IB_PCI_RELAXED_ORDERING", "int", "2.12", minimum=0, maximum=2),
    Variable("NCCL_IB_ADAPTIVE_ROUTING", "bool", "2.16"),
    Variable("NCCL_IB_ECE_ENABLE", "bool", "2.23"),
    Variable("NCCL_IB_RETURN_ASYNC_EVENTS", "bool", "2.23"),
    Variable("NCCL_IB_ASYNC_EVENTS", "bool", "2.23"),
    Variable("NCCL_IB_WARN_RAIL_LOCAL", "bool", "2.23"),
    Variable("NCCL_IB_MERGE_VFS", "bool", "2.14"),
    Variable("NCCL_IB_MERGE_NICS", "bool", "2.20"),
    Variable("NCCL_IB_DATA_DIRECT", "int", "2.27", minimum=0, maximum=2),
    Variable("NCCL_IB_OOO_RQ", "bool", "2.27"),
    Variable("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "bool", "2.29"),
    Variable("NCCL_IB_RESILIENCY_PORT_FAILOVER", "bool", "2.29"),
    Variable("NCCL_OOB_NET_ENABLE", "bool", "2.23"),
    Variable("NCCL_OOB_NET_IFNAME", "text", "2.23"),
    Variable("NCCL_UID_STAGGER_THRESHOLD", "int", "2.23"),
    Variable("NCCL_UID_STAGGER_RATE", "int", "2.23"),
    Variable("NCCL_NET", "text", "2.10"),
    Variable("NCCL_NET_PLUGIN", "text", "2.11"),
    Variable("NCCL_TUNER_PLUGIN", "text", "2.18"),
    Variable("NCCL_TUNER_CONFIG_FILE", "path", "2.28"),
    Variable("NCCL_PROFILER_PLUGIN", "text", "2.23"),
    Variable("NCCL_PROFILE_EVENT_MASK", "int", "2.23"),
    Variable("NCCL_PROFILE_DUMP_FILE", "path", "2.23"),
    Variable("NCCL_ENV_PLUGIN", "text", "2.28"),
    Variable("NCCL_GIN_ENABLE", "bool", "2.28"),
    Variable("NCCL_GIN_TYPE", "int", "2.28"),
    Variable("NCCL_GIN_PLUGIN", "text", "2.28"),
    Variable("NCCL_NET_GDR_LEVEL", "words", "2.4", words=_LEVELS,
             left_on=("LOC", "no NIC reads GPU memory directly (GPUDirect RDMA is off)")),
    Variable("NCCL_NET_GDR_READ", "int", "2.4.2", minimum=0, maximum=1),
    Variable("NCCL_NET_GDR_C2C", "bool", "2.26"),
    Variable("NCCL_NET_SHARED_BUFFERS", "bool", "2.8"),
    Variable("NCCL_NET_SHARED_COMMS", "bool", "2.12"),
    Variable("NCCL_NET_OPTIONAL_RECV_COMPLETION", "bool", "2.24"),
    Variable("NCCL_NET_OVERHEAD", "int", "2.12"),
    Variable("NCCL_NET_FORCE_FLUSH", "bool", "2.17"),
    Variable("NCCL_NET_DISABLE_INTRA", "bool", "2.12"),
    Variable("NCCL_NET_MERGE_LEVEL", "words", "2.22", words=_LEVELS),
    Variable("NCCL_NET_FORCE_MERGE", "text", "2.22"),
    Variable("NCCL_NET_ID", "int", "2.28"),
    Variable("NCCL_GDRCOPY_ENABLE", "bool", "2.8"),
    Variable("NCCL_GDR_FLUSH_DISABLE", "bool", "2.8"),
    Variable("NCCL_SINGLE_RING_THRESHOLD", "size", "2.1", "2.3"),
    Variable("NCCL_LL_THRESHOLD", "size", "2.1", "2.5", replaced_by="NCCL_PROTO"),
    Variable("NCCL_LL128_THRESHOLD", "size", "2.5"),
    Variable("NCCL_TREE_THRESHOLD", "size", "2.4", "2.5", replaced_by="NCCL_ALGO"),
    Variable("NCCL_ALGO", "algorithms", "2.5", words=_ALGORITHMS),
    Variable("NCCL_PROTO", "algorithms", "2.5", words=("LL", "LL128", "Simple")),
    Variable("NCCL_THREAD_THRESHOLDS", "text", "2.5"),
    Variable("NCCL_NVB_DISABLE", "bool", "2.11"),
    Variable("NCCL_NVB_PRECONNECT", "bool", "2.11"),
    Variable("NCCL_PXN_DISABLE", "bool", "2.12", left_on=("1", "GPUs without a NIC of their own rail cross the "
                                                               "PCIe or the socket")),
    Variable("NCCL_PXN_C2C", "bool", "2.27"),
    Variable("NCCL_P2P_PXN_LEVEL", "int", "2.12", minimum=0, maximum=2),
    Variable("NCCL_RUNTIME_CONNECT", "bool", "2.22"),
    Variable("NCCL_GRAPH_REGISTER", "bool", "2.11"),
    Variable("NCCL_LOCAL_REGISTER", "int", "2.19"),
    Variable("NCCL_LEGACY_CUDA_REGISTER", "bool", "2.24"),
    Variable("NCCL_SET_STACK_SIZE", "bool", "2.9"),
    Variable("NCCL_SET_THREAD_NAME", "bool", "2.12"),
    Variable("NCCL_SET_CPU_STACK_SIZE", "bool", "2.23"),
    Variable("NCCL_GRAPH_MIXING_SUPPORT", "bool", "2.13"),
    Variable("NCCL_GRAPH_HELPER_DISABLE", "bool", "2.9"),
    Variable("NCCL_GRAPH_STREAM_ORDERING", "bool", "2.29"),
    Variable("NCCL_DMABUF_ENABLE", "bool", "2.13"),
    Variable("NCCL_P2P_NET_CHUNKSIZE", "size", "2.14"),
    Variable("NCCL_P2P_NVL_CHUNKSIZE", "size", "2.14"),
    Variable("NCCL_P2P_PCI_CHUNKSIZE", "size", "2.14"),
    Variable("NCCL_P2P_SCHEDULE_GROUP_SIZE", "int", "2.27"),
    Variable("NCCL_P2P_LL_THRESHOLD", "size", "2.14"),
    Variable("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "bool", "2.14"),
    Variable("NCCL_CHUNK_SIZE", "size", "2.17"),
    Variable("NCCL_COMM_BLOCKING", "bool", "2.14"),
    Variable("NCCL_COMM_SPLIT_SHARE_RESOURCES", "bool", "2.18"),
    Variable("NCCL_COMM_SHRINK_SHARE_RESOURCES", "bool", "2.27"),
    Variable("NCCL_CUMEM_ENABLE", "int", "2.18", minimum=-2, maximum=1),
    Variable("NCCL_CUMEM_HOST_ENABLE", "int", "2.23", minimum=-1, maximum=1),
    Variable("NCCL_NVLS_ENABLE", "int", "2.17", minimum=0, maximum=2,
             left_on=("0", "NVLink SHARP is off: 370 instead of 480 GB/s of all-reduce on an H100 board")),
    Variable("NCCL_NVLS_CHUNKSIZE", "size", "2.17"),
    Variable("NCCL_NVLS_NCHANNELS", "int", "2.18"),
    Variable("NCCL_NVLSTREE_MAX_CHUNKSIZE", "size", "2.20"),
    Variable("NCCL_MNNVL_ENABLE", "int", "2.21", minimum=0, maximum=2),
    Variable("NCCL_MNNVL_UUID", "text", "2.25"),
    Variable("NCCL_MNNVL_CLIQUE_ID", "int", "2.25"),
    Variable("NCCL_MNNVL_SCATTER_NETS_ENABLE", "bool", "2.28"),
    Variable("NCCL_RAS_ENABLE", "bool", "2.24", left_on=("0", "a hang cannot be asked about while it lasts")),
    Variable("NCCL_RAS_ADDR", "text", "2.24"),
    Variable("NCCL_RAS_TIMEOUT_FACTOR", "int", "2.24"),
    Variable("NCCL_COLLNET_ENABLE", "bool", "2.6"),
    Variable("NCCL_COLLNET_NODE_THRESHOLD", "int", "2.9.9"),
    Variable("NCCL_CTA_POLICY", "text", "2.27"),
    Variable("NCCL_WIN_ENABLE", "bool", "2.27"),
    Variable("NCCL_WIN_STRIDE", "int", "2.27"),
    Variable("NCCL_SYM_CTAS", "int", "2.27"),
    Variable("NCCL_SYM_KERNEL", "text", "2.27"),
    Variable("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "bool", "2.29"),
    Variable("NCCL_NO_CACHE", "text", "2.28"),
    Variable("NCCL_IGNORE_CPU_AFFINITY", "bool", "2.4.6"),
    Variable("NCCL_IGNORE_DISABLED_P2P", "int", "2.8"),
    Variable("NCCL_CONF_FILE", "path", "2.23"),
    Variable("NCCL_TOPO_FILE", "path", "2.6"),
    Variable("NCCL_TOPO_DUMP_FILE", "path", "2.6"),
    Variable("NCCL_TOPO_DUMP_FILE_RANK", "int", "2.6"),
    Variable("NCCL_GRAPH_FILE", "path", "2.6"),
    Variable("NCCL_GRAPH_DUMP_FILE", "path", "2.6"),
    Variable("NCCL_CROSS_NIC", "int", "2.4", minimum=0, maximum=2),
    Variable("NCCL_HOSTID", "text", "2.3"),
    Variable("NCCL_COMM_ID", "text", "2.2"),
    Variable("NCCL_PROGRESS_APPENDOP_FREQ", "int", "2.14"),
    Variable("NCCL_PROXY_APPEND_BATCH_SIZE", "int", "2.14"),
    Variable("NCCL_PROXY_DUMP_SIGNAL", "int", "2.12"),
    Variable("NCCL_PROXY_CPUSET", "text", "2.29"),
    Variable("NCCL_WORK_FIFO_BYTES", "size", "2.20"),
    Variable("NCCL_WORK_FIFO_DEPTH", "int", "2.14"),
    Variable("NCCL_WORK_ARGS_BYTES", "size", "2.23"),
    Variable("NCCL_L1_SHARED_MEMORY_CARVEOUT", "int", "2.13"),
    Variable("NCCL_MEM_SYNC_DOMAIN", "int", "2.17"),
    Variable("NCCL_PAT_ENABLE", "int", "2.23"),
    Variable("NCCL_UNPACK_DOUBLE_NLOADS", "int", "2.20"),
    Variable("NCCL_MULTI_RANK_GPU_ENABLE", "bool", "2.30"),
    Variable("NCCL_INSPECTOR_ENABLE", "bool", "2.28"),
    Variable("NCCL_INSPECTOR_DUMP_DIR", "path", "2.28"),
    Variable("NCCL_INSPECTOR_DUMP_VERBOSE", "bool", "2.28"),
    Variable("NCCL_INSPECTOR_PROM_DUMP", "bool", "2.29"),
    Variable("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "int", "2.28"),
)  # fmt: skip

_TORCH: Final[tuple[Variable, ...]] = (
    Variable("NCCL_ASYNC_ERROR_HANDLING", "int", until="2.2", replaced_by="TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    Variable("NCCL_BLOCKING_WAIT", "bool", until="2.2", replaced_by="TORCH_NCCL_BLOCKING_WAIT"),
    Variable("NCCL_DESYNC_DEBUG", "bool", until="2.2", replaced_by="TORCH_NCCL_DESYNC_DEBUG"),
    Variable("NCCL_ENABLE_TIMING", "bool", until="2.2", replaced_by="TORCH_NCCL_ENABLE_TIMING"),
    Variable("TORCH_NCCL_BLOCKING_WAIT", "bool", "2.2"),
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "int", "2.2", minimum=0, maximum=3),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "bool", "2.2"),
    Variable("TORCH_NCCL_DESYNC_DEBUG", "bool", "2.2"),
    Variable("TORCH_NCCL_ENABLE_TIMING", "bool", "2.2"),
    Variable("TORCH_NCCL_ENABLE_MONITORING", "bool", "2.2", left_on=("0", "a stuck watchdog is never noticed")),
    Variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "int", "2.2", minimum=1),
    Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "int", "2.2", minimum=0),
    Variable("TORCH_FR_BUFFER_SIZE", "int", "2.9", minimum=0),
    Variable("TORCH_FR_DUMP_TEMP_FILE", "path", "2.9"),
    Variable("TORCH_FR_CPP_STACK", "bool", "2.9"),
    Variable("TORCH_NCCL_TRACE_CPP_STACK", "bool", "2.3"),
    Variable("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "int", "2.2"),
    Variable("TORCH_NCCL_COORD_CHECK_MILSEC", "int", "2.3"),
    Variable("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "bool", "2.4"),
    Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "path", "2.2"),
    Variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "path", "2.4"),
    Variable("TORCH_NCCL_EXTRA_DUMP_ON_EXEC", "bool", "2.6"),
    Variable("TORCH_NCCL_NAN_CHECK", "bool", "2.4", left_on=("1", "every tensor is scanned before it is sent")),
    Variable("TORCH_NCCL_AVOID_RECORD_STREAMS", "bool", "2.1"),
    Variable("TORCH_NCCL_USE_COMM_NONBLOCKING", "bool", "2.2"),
    Variable("TORCH_NCCL_NONBLOCKING_TIMEOUT", "int", "2.3"),
    Variable("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "bool", "2.1"),
    Variable("TORCH_NCCL_HIGH_PRIORITY", "bool", "2.4"),
    Variable("TORCH_NCCL_CUDA_EVENT_CACHE", "bool", "2.5"),
    Variable("TORCH_NCCL_PROPAGATE_ERROR", "bool", "2.6"),
    Variable("TORCH_NCCL_RETHROW_CUDA_ERRORS", "bool", "2.4"),
    Variable("TORCH_NCCL_RANKS_PER_ROOT", "int", "2.7"),
    Variable("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "bool", "2.5"),
    Variable("TORCH_NCCL_USE_CUDA_EVENT_CACHE", "bool", "2.4"),
    Variable("TORCH_DISTRIBUTED_DEBUG", "words", "1.9", words=("OFF", "INFO", "DETAIL"),
             left_on=("DETAIL", "every collective is preceded by a check over Gloo")),
    Variable("TORCH_CPP_LOG_LEVEL", "words", "1.9", words=("INFO", "WARNING", "ERROR", "FATAL")),
    Variable("TORCH_SHOW_CPP_STACKTRACES", "bool", "1.7"),
    Variable("TORCH_ELASTIC_ERROR_FILE", "path"),
    Variable("TORCHELASTIC_ERROR_FILE", "path"),
)  # fmt: skip

VARIABLES: Final[dict[str, Variable]] = {variable.name: variable for variable in (*_NCCL, *_TORCH)}

CHECKED_PREFIXES: Final = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_")
"""Families in which an unknown name is suspicious; every other name is somebody else's."""

NOT_READ_BY_NCCL: Final = re.compile(
    r"NCCL_(?:VERSION|HOME|ROOT|ROOT_DIR|DIR|PATH|LIB|LIBRARY|LIB_DIR|INCLUDE|INCLUDE_DIR|INCLUDE_PATH|LIBRARY_PATH|"
    r"LIBRARIES|SRC|SRC_DIR|BUILD|HDR_PATH|PREFIX|PKG|PACKAGE|PACKAGE_NAME|LINK|GENCODE|TESTS?_\w+|LOG_DIR|COMMIT|"
    r"INSTALL\w*|CUDA_VERSION|TEST\w*)"
)
"""Names that builds, images and scripts use for themselves."""


def version_tuple(text: str) -> tuple[int, ...]:
    """``2.18.3`` as (2, 18, 3); what follows a ``+`` or ``-`` does not count."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+-]", text)[0])[:3])


def is_torch(name: str) -> bool:
    """Whether the versions of ``name`` are PyTorch's."""
    return any(variable.name == name for variable in _TORCH)
