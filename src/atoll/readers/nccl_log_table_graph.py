"""Sentence shapes of topology, search, tuning and connection: what NCCL decided and how ranks were joined.

Channel lines with two ranks in them (``Channel 00/0 : 0[0] -> 1[1] via P2P/IPC``) are the bulk of every log and are not
here: ``nccl_log_job`` reads them. See ``nccl_log_table_init`` for how releases share a name.
"""

from __future__ import annotations

from typing import Final

from atoll.readers.nccl_log_facts import (
    Affinity,
    ChannelCounts,
    ChannelRing,
    Fact,
    GraphPattern,
    NvlsBindFailed,
    NvlsSupport,
    P2pDisabled,
    SystemBandwidth,
)
from atoll.readers.nccl_log_shapes import KEEP_FEW, Shape
from atoll.readers.nccl_log_table_init import RCCL_TAIL


def _ring(channel: int, ranks: str, of: int = -1, **_: int) -> Fact:
    return ChannelRing(channel, of, tuple(int(rank) for rank in ranks.split()))


_NODE: Final = r"(?:GPU|NIC|NET|CPU|PCI|NVS|GIN|DIE|XGMI|NVSWITCH)"

GRAPH_SHAPES: Final[tuple[Shape, ...]] = (
    # --- the graph of channels
    Shape("channel_ring", r"Channel <channel:int>(?:/<of:int>)? ?:"
                          r" (?P<ranks>\d+(?:\s+\d+)*)" + RCCL_TAIL, build=_ring, keep=2000),
    Shape("ring", r"Ring <channel:int> ?: <previous:int> -> <rank:int> -> <next:int>" + RCCL_TAIL, keep=2000),
    Shape("trees", r"Trees <trees:rest>", keep=2000),
    Shape("tree", r"Tree <channel:int> ?: <tree:rest>", keep=2000),
    Shape("nvls_trees", r"NVLS Trees ?: <trees:rest>"),
    Shape("collnet_channel", r"CollNet(?:Direct|Chain)? channel <channel:int> rank <rank:int> ?<text:rest>"),
    Shape("collnet_chains", r"Coll[nN]et Chains <text:rest>"),
    Shape("collnet_heads", r"(?:headRank <head:int> out|nUp <up:int> nHeads) <text:rest>"),
    Shape("channel_counts",
          r"<collective:int> coll channels(?:, <collnet:int> collnet channels)?(?:, <nvls:int> nvls channels)?,"
          r" <p2p:int> p2p channels, <p2p_per_peer:int> p2p channels per peer" + RCCL_TAIL,
          build=lambda comm=0, nranks=0, bus_id=0, **fields: ChannelCounts(**fields)),
    Shape("channel_counts",
          r"comm:<comm:ptr>, nRanks:<nranks:int>, nNodes:<nodes:int>, coll channels:<collective:int>"
          r" collnet channels:<collnet:int>, nvls channels:<nvls:int>, p2p channels:<p2p:int>,"
          r" p2p channels per peer:<p2p_per_peer:int>",
          build=lambda comm=0, nranks=0, nodes=0, **fields: ChannelCounts(**fields)),
    Shape("printed_rings", r"\[RINGS\] ?<ranks:rest>", keep=500),
    Shape("channel_adjustment", r"(?:pre-adjustment|post-adjustment|minNChannels) ?<text:rest>", keep=KEEP_FEW),
    Shape("channel_adjustment", r"minNChannels:<channels:int>", keep=KEEP_FEW),
    Shape("threads_per_block", r"Threads per block ?: <threads:rest>"),
    Shape("connected", r"Connected (?P<what>all rings|all trees|binomial trees|NVLS tree|[Cc]oll[nN]et.*?)"
                       r"(?:, use ring PXN <pxn:int> GDR <gdr:int>)?" + RCCL_TAIL),
    Shape("connected", r"Connected Collnet Chains <text:rest>"),
    Shape("connected", r"rank <rank:int> Connected CollNet"),
    Shape("thresholds", r"threadThresholds <text:rest>"),
    Shape("p2p_chunk", r"P2P Chunksize set to <size_bytes:int>" + RCCL_TAIL),
    Shape("p2p_tuning", r"(?:Tuning P2P operations with|Max P2P Peers) <text:rest>"),
    Shape("p2p_type", r"Check P2P Type <text:rest>" + RCCL_TAIL),
    Shape("p2p_cross_clique", r"(?:Cross-clique P2P enabled|LSA extended to full NVL domain): <text:rest>"),
    # --- what the search saw
    Shape("graph_pattern",
          r"Pattern <pattern:int>, crossNic <cross_nic:int>, nChannels <channels:int>, (?:bw|speed) <bw_intra:float>/"
          r"<bw_inter:float>, (?:nvlink \S+ )?type <type_intra:text>/<type_inter:text>, sameChannels"
          r" <same_channels:int>",
          GraphPattern),
    Shape("graph_pattern",
          r"Pattern <pattern:int>, crossNic <cross_nic:int>, nChannels <channels:int>, speed <bw_intra:float>/"
          r"<bw_inter:float>, <text:rest>",
          build=lambda text="", **fields: GraphPattern(type_intra="", type_inter="", **fields)),
    Shape("system_bandwidth",
          r"=== System ?: max(?:Bw|Width) <max_bw:float>(?: (?:totalBw|totalWidth) <total_bw:float>)?.*",
          build=lambda max_bw, total_bw=0.0: SystemBandwidth(max_bw, total_bw)),
    Shape("topology_rule", r"=+"),
    Shape("graph_channel", r"<channel:int> ?: (?P<path>(?:" + _NODE + r"/\S+(?:\s+|$))+)", keep=2000),
    Shape("topology_link", r"\+ (?P<link>[A-Z0-9_]+)\[<bandwidth:float>\] - <node:rest>", keep=2000),
    Shape("topology_node", r"(?P<node>" + _NODE + r"/\S+) \(<text:text>\)", keep=2000),
    Shape("topology_paths", r"(?P<node>" + _NODE + r"/\S+) ?: ?<paths:rest>", keep=2000),
    Shape("topology_paths", r"(?P<node>(?:Paths|Path) .*)", keep=2000),
    Shape("topology_search", r"Search <graph:int> ?: <channels:int> channels loaded from XML graph"),
    Shape("topology_note", r"Topology detection ?: <text:rest>"),
    Shape("topology_note", r"(?:NVLink target|Could not get device class for NVLink target|Attribute|Ignoring SHM"
                           r" locality"
                           r"|KV Convert|No path computed|Ignoring element|latencyinter not found) ?<text:rest>"),
    Shape("topology_note", r"(?:Add|Could not find|XML|Error ?:|nvmlDevice\w+|GetXmlFromCpu) ?<text:rest>"),
    Shape("topology_note", r"(?:Gpus <gpu:int> and|Set CPU affinity|localHostHash =|nLocals =) ?<text:rest>"),
    Shape("topology_note", r"(?:CPUs with mixed|No NVML device handle|Marking physical devices|Disabling"
                           r" LL128) ?<text:rest>"),
    Shape("topology_note", r"NVLS tuning: nChannels <channels:int> <text:rest>"),
    Shape("topology_gdr", r"(?:GPU/|NET/)\S+ .*GDR.*"),
    Shape("affinity", r"Setting affinity for GPU <gpu:int> to <cpus:rest>", Affinity),
    Shape("affinity", r"(?:ncclTopoGetCpuAffinity: )?Affinity for GPU <gpu:int> is ?<cpus:text>(?:\. .*)?", Affinity),
    Shape("affinity_kept", r"(?:; CPU affinity = |Current affinity for GPU|CPU affinity) ?<text:rest>"),
    # --- tuning tables
    Shape("tuning_table", r"(?:Algorithm|Protocol|Max"
                          r" NThreads|Function|Latency/AlgBw|Broadcast|Reduce|AllGather|ReduceScatter"
                          r"|AllReduce|SendRecv|AllToAllPivot|BcastOp) ?\| ?<row:rest>", keep=500),
    Shape("tuning_matrix", r"Enabled NCCL Func/Proto/Algo Matrix:<text:rest>"),
    Shape("tuning_matrix", r"(?:Function|Broadcast|Reduce|AllGather|ReduceScatter|AllReduce)(?:\s+\d+)+"),
    Shape("tuning", r"(?:NCCL_ALGO|NCCL_PROTO|NCCL_SYM_KERNEL) was set to <text:rest>"),
    Shape("tuning", r"(?:Rome|rcclParam|RCCL|Chordal|Model) (?:model|topology|tuning|matched|Model) ?<text:rest>"),
    Shape("collnet_note", r"CollNet(?: currently| is not| sizes)?:? ?<text:rest>"),
    Shape("collnet_note", r"(?:Cannot initialize CollNet|Communicator has <nodes:int> nodes which is less than CollNet)"
                          r" ?<text:rest>"),
    Shape("mnnvl", r"MNNVL <text:rest>"),
    Shape("nvls_support", r"NVLS multicast support is (?P<available>not )?available on dev <dev:int>.*",
          build=lambda dev, available=None: NvlsSupport(not available, dev)),
    Shape("nvls_bind_failed",
          r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size <size_bytes:int> ?: CUDA error <error:int>"
          r" '<message:text>'\.?(?: ?<consequence:rest>)?", NvlsBindFailed),
    Shape("nvls", r"NVLS (?P<step>Bind|Created|Creating|Mapped|Unbind|Unmap|comm|group|importing|rank|export"
                  r"|Import|Export)"
                  r" ?<text:rest>", keep=200),
    Shape("p2p_disabled", r"P2P is disabled between (?P<nvlink>NVLINK )?connected GPUs <gpu:int> and <peer_gpu:int>.*",
          build=lambda gpu, peer_gpu, nvlink=None: P2pDisabled(gpu, peer_gpu, bool(nvlink))),
    Shape("p2p_disabled", r"P2P not supported between GPU<gpu:int> and GPU<peer_gpu:int>", P2pDisabled),
    Shape("p2p_disabled", r"Could not enable P2P between dev <gpu:int>\(=<a:hex>\) and dev"
                          r" <peer_gpu:int>\(=<b:hex>\).*",
          build=lambda gpu, peer_gpu, a=0, b=0: P2pDisabled(gpu, peer_gpu)),
    # --- proxy and transport set up
    Shape("proxy_thread", r"\[Proxy (?P<thread>Service UDS|Service|Progress)\] Device <dev:int> CPU core <core:int>.*"),
    Shape("proxy_thread", r"\[(?P<thread>Proxy \w+(?: UDS)?|Proxy Service \d+|Service thread)\] ?<text:rest>"),
    Shape("proxy_operation", r"Received and initiated operation=<operation:word> res=<result:int>", keep=KEEP_FEW),
    Shape("proxy_connection", r"New proxy (?P<direction>send|recv) connection <connection:int> from local rank"
                              r" <rank:int>,"
                              r" transport <transport:int>", keep=KEEP_FEW),
    Shape("proxy_connected", r"Connect(?:ed|ion) to proxy (?:localRank|tpRank|rank) <rank:int> ?-> connection"
                             r" <connection:ptr>",
          keep=KEEP_FEW),
    Shape("proxy_message", r"(?:resp\.opId|recvOpId|proxyProgressAsync|ncclPollProxyResponse|Queuing opId|ProxyCall"
                           r"|sendConnect|recvConnect|proxyUDSRecvReq\S*|Attempting to dequeue|Could(?:n't| not)"
                           r" find opId"
                           r"|Storing response|Mismatched response)[ =]?<text:rest>", keep=KEEP_FEW),
    Shape("proxy_cpus", r"NCCL_PROXY_CPUSET = <text:rest>"),
    Shape("uds", r"UDS:? <text:rest>", keep=200),
    Shape("proxy_args", r"(?:proxyArgs|Proxy|proxy) ?<text:rest>", keep=200),
    Shape("transport_note", r"SHM legacy: <text:rest>", keep=200),
    # --- registration of user buffers
    Shape("registration", r"rank <rank:int> - (?P<kind>IPC|NET|NVLS|COLLNET|Collnet) (?:reuse|register)\w* buffer"
                          r" <text:rest>",
          keep=200),
    Shape("registration", r"rank <rank:int> <text:text>(?:regist|buffer|reg)<more:rest>", keep=200),
    Shape("registration", r"(?:Skipping|Register|Cleanup|Registered|Deregister|register|deregister|Buffer)(?: MR)?:?"
          r" <text:rest>", keep=200),
    Shape("registration", r"(?:IPC|NET|NVLS|CollNet) (?:register|reg|buffer)\w* <text:rest>", keep=200),
    # --- MSCCL and MSCCL++ in forks
    Shape("msccl", r"(?:MSCCL|MSCCL\+\+|MSCCLPP|mscclpp)(?:\+\+)? ?: ?<text:rest>"),
    Shape("msccl", r"Using MSCCL (?:Algo|files|scheduler)\S* <text:rest>"),
    # --- prints of the topology that research forks add, one node, link or hop a line
    Shape("printed_node", r"Node Type: <kind:word>,? ID: <id:rest>", keep=500),
    Shape("printed_link", r"Link <index:int>: ID = <id:word>,? Bandwidth = <bandwidth:float>", keep=500),
    Shape("printed_destination", r"-> Dest Type: <kind:rest>", keep=500),
    Shape("printed_paths", r"Total Paths: <paths:int>, BW: <bandwidth:float> GB/s, Type: <kind:rest>", keep=500),
    Shape("printed_hop", r"Hop <index:int>: Type=<kind:word> BW=<bandwidth:float> GB/s, RemNodeType=<remote:word>"
                         r" id <id:rest>",
          keep=500),
    Shape("printed_graph", r"(?P<scope>Intra|Inter)-node paths \(nChannels=<channels:int>\):"),
    Shape("printed_channel", r"Channel <channel:int>: ?"),
    Shape("printed_number", r"<value:int>", keep=KEEP_FEW),
    Shape("blank", r"", keep=KEEP_FEW),
)  # fmt: skip
