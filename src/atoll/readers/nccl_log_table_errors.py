"""Sentence shapes of failures and of running collectives.

Failures with a class of their own come first; then families, whose members are many and alike
(``Call to <call> failed``).
See ``nccl_log_table_init`` for how releases share a name.
"""

from __future__ import annotations

from typing import Any, Final

from atoll.readers.nccl_log_facts import (
    CheckFailed,
    Collective,
    Complaint,
    CudaFailure,
    DuplicateGpu,
    ErrorReturn,
    Fact,
    NoTransport,
    SharedMemoryFailed,
    SystemCallFailed,
    VersionMismatch,
)
from atoll.readers.nccl_log_shapes import KEEP_FEW, Shape


def _collective(**fields: Any) -> Fact:
    for extra in ("sendbuff", "recvbuff", "acc", "acc_after", "stream", "task", "global_rank"):
        fields.pop(extra, None)
    return Collective(**fields)


ERROR_SHAPES: Final[tuple[Shape, ...]] = (
    # --- running collectives
    Shape("collective",
          r"<collective:word>: opCount <op_count:hex> sendbuff <sendbuff:ptr>(?: acc <acc:ptr>)? recvbuff"
          r" <recvbuff:ptr>(?: acc <acc_after:ptr>)?"
          r" count <count:int> datatype <datatype:int> op <op:int> root <root:int> comm <comm:ptr>"
          r" \[nranks=<nranks:int>\]"
          r" stream <stream:ptr>(?: task <task:int> globalrank <global_rank:int>)?",
          build=_collective, keep=KEEP_FEW),
    Shape("collective_plan", r"<collective:word>: <size_bytes:int> Bytes -> Algo <algorithm:word> proto <protocol:word>"
                             r" ?(?:time"
                             r" <time_us:float>|channel\{Lo\.\.Hi\}=\{<low:int>\.\.<high:int>\}|<text:text>)",
          keep=2000),
    Shape("collective_plan", r"<collective:word> \[(?P<kind>[\w ]+)\]: <size_bytes:int> Bytes ->"
                             r" <text:rest>", keep=2000),
    Shape("collective_plan", r"<size_bytes:int> Bytes -> Algo <algorithm:word> proto <protocol:word> time"
                             r" <time_us:float>", keep=2000),
    Shape("collective_trace", r"## \[<time:float>\] \[<rank:text>\] <text:rest>", keep=KEEP_FEW),
    Shape("api_call", r"nccl(?P<call>\w+)\(<arguments:text>\)", keep=KEEP_FEW),
    # --- failures with a class
    Shape("error_return", r"-> <code:int>(?: \[<thread:text>\])?", ErrorReturn),
    Shape("error_return", r"-> \[<thread:text>\] state unknown <code:int>", ErrorReturn),
    Shape("cuda_failure", r"(?:Cuda|CUDA|HIP|Hip) failure(?: <error:int>)? ?'<message:text>'.*", CudaFailure),
    Shape("cuda_failure", r"(?:Cuda|CUDA|HIP|Hip) failure <message:rest>", CudaFailure),
    Shape("cuda_failure", r"(?P<message>failed to peer with device <dev:int>.*)",
          build=lambda message, dev=0: CudaFailure(message)),
    Shape("cuda_failure", r"(?P<message>(?:peer query failed|cudaIpc\w+ failed|hostStreamPlanCallback\(\)"
                          r" failed|cudaMalloc).*)",
          CudaFailure),
    Shape("duplicate_gpu", r"Duplicate GPU detected ?: rank <rank:int> and rank <other_rank:int> both on"
                           r" (?:CUDA|HIP) device"
                           r" <bus_id:hex>", DuplicateGpu),
    Shape("duplicate_gpu", r"Multiple Ranks are using the same GPU.*", DuplicateGpu),
    Shape("version_mismatch", r"Mismatched NCCL version detected ?: rank <rank:int> version <version:word> rank"
                              r" <other_rank:int>"
                              r" version <other_version:word>", VersionMismatch),
    Shape("version_mismatch", r"NCCL version mismatch with remote peer <peer:text> \(local: <version:text>, remote"
                              r" <other_version:text>\)",
          build=lambda peer="", **fields: VersionMismatch(**fields)),
    Shape("version_mismatch", r"(?:NCCL library is not backwards compatible|The application was compiled with too"
                              r" old).*",
          VersionMismatch),
    Shape("no_transport", r"No transport found for rank <rank:int>\[<gpu:hex>\] -> rank"
                          r" <peer_rank:int>\[<peer_gpu:hex>\]",
          NoTransport),
    Shape("shared_memory_failed", r"Error: failed to extend <path:word> to <size_bytes:int> bytes(?:, error:"
                                  r" <error:rest>)?",
          SharedMemoryFailed),
    Shape("shared_memory_failed", r"(?P<what>Error: failed to create shared memory file|Error: Could not map|Could"
                                  r" not map)"
                                  r" <path:word>(?: size <size_bytes:int>)?, error:? <error:rest>",
          build=lambda what="", **fields: SharedMemoryFailed(**fields)),
    Shape("shared_memory_failed", r"Error while <what:text> shared memory segment <path:text> \(size <size_bytes:int>\)"
                                  r"(?:, error: <error:rest>)?",
          build=lambda what="", **fields: SharedMemoryFailed(**fields)),
    Shape("shared_memory_failed", r"Call to (?P<what>shm_open|posix_fallocate|mmap|ftruncate|shmget|munmap|shm_unlink)"
                                  r" failed ?: <error:rest>",
          build=lambda what, error: SharedMemoryFailed(what, -1, error)),
    Shape("shared_memory_failed", r"(?P<what>munmap of|unlink|mkstemp: Failed to create|fallocate: Failed to extend)"
                                  r"(?: shared memory)? <path:word> ?<error:rest>",
          build=lambda what="", **fields: SharedMemoryFailed(**fields)),
    Shape("service_lost", r"(?:Socket recv failed|Proxy Call to rank) <text:rest>"),
    Shape("fatal", r"(?:Unrecoverable error detected|Fatal|communicator encountered a fatal error)[: (]<text:rest>"),
    Shape("remote_error", r"(?:remote process exited or there was a network error|unhandled (?:cuda|system) error"
                          r"|internal error|invalid (?:argument|usage)).*"),
    Shape("no_algorithm", r"Error ?: no (?:algorithm/protocol|symmetric kernel) available.*"),
    Shape("no_algorithm", r"No algorithm/protocol available.*"),
    Shape("group_misuse", r"(?:Attempt to use communicator before|Blocking and nonblocking|Either none or all"
                          r" communicators"
                          r"|Group creation failed|Streams given to|Stream is not being captured|NCCL cannot be"
                          r" captured)"
                          r" ?<text:rest>"),
    # --- families
    Shape("system_call", r"Call to (?P<call>[\w ]+?)(?:\(\))? returned <error:text>, retrying.*", SystemCallFailed,
          {"retrying": True}),
    Shape("system_call", r"Call to (?P<call>\w[\w ]*?)(?:\(\))? failed(?: with(?: error)?)?"
                         r" ?:? ?<error:rest>", SystemCallFailed),
    Shape("system_call", r"Call to (?P<call>\w+)(?:\(\))? (?:returned|not supported|skipped)["
                         r" ,]*<error:rest>", SystemCallFailed),
    Shape("system_call", r"(?P<call>(?:ibv|nvml|cu|cuda|gdr|hsa|hip|rsmi|mlx5dv|sched|mnl)_?\w*)(?:\([^)]*\))?"
                         r" (?:failed|returned)(?: with(?: error)?)? ?:? ?<error:rest>", SystemCallFailed),
    Shape("system_call", r"(?P<call>ibv_\w+|nvml\w+|gdr_\w+|cu[A-Z]\w+)(?:\(.{0,200}?\))?"
                         r" <error:rest>", SystemCallFailed),
    Shape("argument", r"<function:word> ?: (?P<problem>\S+ (?:argument is NULL|.*is not a valid pointer|allocated"
                      r" on device.*))",
          CheckFailed),
    Shape("argument", r"<function:word> ?: (?P<problem>(?:invalid|reduction operation|skipping"
                      r" sendbuff|communicator was) .*)",
          CheckFailed),
    Shape("argument", r"(?P<function>\w+) (?P<problem>cannot be NULL|argument not initialized via \w+)", CheckFailed),
    Shape("function_note", r"(?P<function>(?:nccl|comm|socket|proxy|send|recv|bootstrap|dev|ring|bcast|get|alloc"
          r"|ce|gin|rma)"
                           r"[A-Z]\w*)(?:\(\))?[ :]<text:rest>", keep=2000),
    Shape("gin", r"(?:GIN|RMA|GDAKI|Elastic GIN|Rma)(?:[ :/]|-capable) ?<text:rest>", keep=500),
    Shape("symmetric_check", r"(?:SymCheck|Coll <collective:word> size <size:int> symmetric registration"
                             r" check): ?<text:rest>",
          keep=200),
    Shape("complaint", r"(?P<verb>Failed|Could not|Couldn't|Could"
                       r" get|Unable|Cannot|Can't|Invalid|Invalig|Unknown|Unrecognized"
                       r"|Unexpected|Unsupported|No valid|Error in|Error mapping|Error:|Error :|Insufficient|Not"
                       r" enough)"
                       r" ?<what:rest>", Complaint),
    Shape("symmetric_check", r"Coll <collective:word> size <size:int> symmetric registration check failed"
                             r" <text:rest>", keep=200),
    Shape("internal_note",
          r"(?P<subject>Init CE|Inserted window|Intrusive (?:address )?map|Legacy IPC|List loop|Listencomm in"
          r" unknown state"
          r"|MLOPart index|BusId|Memory resume|Memory suspend|Multicast support requested|Multimem pointer requested"
          r"|NCCL cannot use|Number of segments|One sided RMA|One-sided RMA|P2p operation|P2p schedule|PXN should not"
          r"|Split shares resources|Thread creation|Thread join|Window registration|Window address|VA represented by"
          r"|The provided lsaRank|Child comms|Communicator does not|Compute Capability|Context|Flags|Signal"
          r" index|Segment"
          r"|Value of|Inactive op|Elem|User requested|Internal error|No GIN-capable|No RMA-capable|No network devices"
          r"|No functional devices|No allocation found|Net registration|Binding"
          r" multicast|MCBasePtr|Retrieve|Enabling CPU"
          r"|Data type supplied|Object pointer|FP8 reduction support|Hierarchical CE|IB device|Count not open"
          r"|scheduleRmaTasksToPlan:|window has|peer closed|trying to access|improper usage|lib wrapper|on dev"
          r"|attaching memory|graphStreamOrdering|asyncJobLaunch:|failed to set the number|Warning: remote FLID"
          r"|MSCCL scheduler|ReduceScatter_RailA2A_Lsa\w*) ?<text:rest>", keep=500),
    Shape("rank_note", r"Rank <rank:int> ?:? (?P<what>has no transport|requires NIC|ncclRma\w+|finished"
                       r" init|invalid|exceeds)"
                       r" ?<text:rest>", keep=2000),
    Shape("rank_note", r"rank <rank:int> (?P<what>exceeds|invalid IPC) ?<text:rest>", keep=2000),
)  # fmt: skip
