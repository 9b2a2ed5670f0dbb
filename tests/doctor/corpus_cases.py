"""One injector per rule: it turns a healthy job into one that has just this cause. Imports neither readers nor rules.

``CASES`` maps a rule's id to its ``Case``: the injector, the healthy job that it starts from (``multi``: two nodes,
``single``: one node, ``files``: no NCCL log is needed but a healthy one lies beside), the versions in which the cause exists,
and the rules that must fire with it because one follows from the other.
"""

# ruff: noqa: E501 (lines as programs print them)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from doctor.corpus import (
    SIZES,
    VERSIONS,
    Job,
    bench_output,
    body_channel,
    ibstat,
    near,
    pairs_csv,
    recorder,
    topo,
    topology_xml,
    version_number,
)

H100 = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Case:
    inject: Callable[[Job], None]
    base: str = "multi"
    since: str = ""
    until: str = ""
    companions: tuple[str, ...] = ()

    def versions(self) -> list[str]:
        low = version_number(self.since) if self.since else (0,)
        high = version_number(self.until) if self.until else (99,)
        fitting = [version for version in VERSIONS if low <= version_number(version) < high]
        # A cause that exists in a window of releases is written down in releases of that window.
        while len(fitting) < 3:
            fitting.append({"2.19.3": "2.20.5", "2.20.5": "2.22.3"}.get(fitting[-1], fitting[-1]))
        return fitting


# --- network


def to_sockets(job: Job, interfaces: str) -> None:
    job.drop(r"NET/IB|NET/OFI|GPU Direct RDMA|DMA-BUF|NCCL_TOPO_FILE")
    job.replace(r"Using network .*", "Using network Socket")
    job.replace(r"via NET/[^/]+(?: Libfabric)?/(\d+)\S*", r"via NET/Socket/0")
    job.replace(r"GDR 1", "GDR 0")
    for rank in job.ranks:
        job.early(rank, f"NET/Socket : Using {interfaces}")


def n01(job: Job) -> None:
    to_sockets(job, "[0]eno1:10.0.0.1<0> [1]ens1f0:10.1.0.1<0>")


def n02(job: Job) -> None:
    job.replace(r"(Bootstrap ?:) Using .*", r"\1 Using docker0:172.17.0.1<0>")


def n03(job: Job) -> None:
    job.lines = job.lines[:1]
    job.everybody("NCCL_SOCKET_IFNAME set by environment to ib9")
    job.everybody("Bootstrap : no socket interface found", "WARN", "bootstrap.cc:45")


def n04(job: Job) -> None:
    to_sockets(job, "[0]ens1f0:10.1.0.1<0>")
    for rank in job.ranks:
        job.early(rank, "Failed to open libibverbs.so[.1]")
    job.extra["ibstat.txt"] = ibstat().encode()


def n05(job: Job) -> None:
    to_sockets(job, "[0]ens1f0:10.1.0.1<0>")
    for rank in job.ranks:
        job.early(rank, "NET/IB : No device found.")
    job.extra["ibstat.txt"] = ibstat().encode()


def n06(job: Job) -> None:
    to_sockets(job, "[0]ens1f0:10.1.0.1<0>")
    for rank in job.ranks:
        job.early(rank, "NCCL_IB_DISABLE set by environment to 1")


def n07(job: Job) -> None:
    to_sockets(job, "[0]ens1f0:10.1.0.1<0>")
    for rank in job.ranks:
        job.early(rank, "NET/OFI No eligible providers were found")


def n08(job: Job) -> None:
    job.drop(r"NET/Plugin|NET/OFI")
    for rank in job.ranks:
        if job.speakers[rank].host == job.hosts[0]:
            job.early(
                rank,
                "NET/Plugin: Loaded net plugin Libfabric (v8)"
                if job.number >= (2, 19)
                else "Plugin Path : /opt/lib/libnccl-net.so",
            )
        else:
            job.early(rank, "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")


def completion(job: Job, status: int, vendor: int, hca: str = "mlx5_0") -> str:
    peer = "10.0.0.2<35211>"
    if job.number < (2, 12):
        return f"NET/IB : Got completion with error {status}, opcode 1, len 0, vendor err {vendor}"
    if job.number < (2, 18):
        return f"NET/IB : Got completion from peer {peer} with error {status}, opcode 32600, len 0, vendor err {vendor}"
    if job.number < (2, 24):
        return (
            f"NET/IB : Got completion from peer {peer} with status={status} opcode=0 len=0 vendor err {vendor} (Send)"
        )
    name = {12: "IBV_WC_RETRY_EXC_ERR", 5: "IBV_WC_WR_FLUSH_ERR", 13: "IBV_WC_RNR_RETRY_EXC_ERR"}[status]
    return f"NET/IB: Got completion from peer {peer} with status={name}({status}) opcode=IBV_WC_RDMA_WRITE(1) reqSize=0 vendor_err={vendor} req_type=Send localGid ::ffff:10.0.0.1 remoteGids ::ffff:10.0.0.2 hca {hca}"


def n09(job: Job) -> None:
    job.say(1, completion(job, 12, 129), "WARN", "transport/net_ib.cc:94")
    job.say(1, "transport/net.cc:1034 -> 6")


def n10(job: Job) -> None:
    event = {True: "NET/IB : mlx5_0:1 Got async event : port error", False: "NET/IB : Got async event : port error"}[
        job.number >= (2, 18)
    ]
    job.say(1, event, "WARN", "transport/net_ib.cc:94")
    job.say(1, completion(job, 12, 129), "WARN", "transport/net_ib.cc:94")


def n11(job: Job) -> None:
    job.say(3, "Net : Connection closed by remote peer gn01<42222>", "WARN", "misc/socket.cc:540")
    job.say(3, "misc/socket.cc:57 -> 6")


def n12(job: Job) -> None:
    job.drop(r"NET/OFI")
    job.drop(r"NET/IB : Using")
    for rank in job.ranks:
        job.early(rank, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>")


def n13(job: Job) -> None:
    job.drop(r"NET/IB : Using")
    listed = " ".join(f"[{i}]mlx5_{i}:1/RoCE" for i in range(24))
    for rank in job.ranks:
        job.early(rank, f"NET/IB : Using {listed} ; OOB eth0:10.0.0.1<0>")


def n14(job: Job) -> None:
    job.extra["ibstat.txt"] = ibstat("Initializing", sm=0).encode()


def n15(job: Job) -> None:
    job.extra["ibstat_gn01.txt"] = ibstat(rate=400).encode()
    job.extra["ibstat_gn02.txt"] = ibstat(rate=100).encode()
    job.extra["ibstat_gn03.txt"] = ibstat(rate=400).encode()


def n16(job: Job) -> None:
    said = (
        "Call to ibv_reg_mr failed"
        if job.number < (2, 12)
        else "Call to ibv_reg_mr failed with error Cannot allocate memory"
    )
    if job.number < (2, 12):
        said = "Call to ibv_create_qp failed"
    job.say(2, said, "WARN", "misc/ibvwrap.cc:284")
    job.say(2, "misc/ibvwrap.cc:284 -> 2")


def n17(job: Job) -> None:
    job.drop(r"via NET")
    half = len(job.speakers) // 2
    for src, dst, nic_out, nic_in in ((0, half, 0, 1), (1, half + 1, 1, 1)):
        job.say(src, body_channel(job, 1, src, dst, f"NET/{job.network}/{nic_out}/GDRDMA", "send"))
        job.say(dst, body_channel(job, 1, src, dst, f"NET/{job.network}/{nic_in}/GDRDMA", "receive"))
    job.say(0, completion(job, 12, 129), "WARN", "transport/net_ib.cc:94")


def n18(job: Job) -> None:
    rows = [(1 << 20, 4.0), (16 << 20, 8.8), (128 << 20, 9.2), (512 << 20, 7.0), (2 << 30, 3.9), (8 << 30, 2.0)]
    job.extra["bench.txt"] = bench_output(rows, [("gn01", H100)] * 4 + [("gn02", H100)] * 4).encode()


def n19(job: Job) -> None:
    rows = [(size, min(150.0, size / 2e6)) for size in SIZES]
    job.extra["bench.txt"] = bench_output(rows, [("gn01", H100)] * 8 + [("gn02", H100)] * 8).encode()
    for host in ("gn01", "gn02"):
        job.extra[f"ibstat_{host}.txt"] = "".join(ibstat(adapter=f"mlx5_{i}") for i in range(8)).encode()


def n20(job: Job) -> None:
    job.extra["pairs.csv"] = pairs_csv(9, lambda a, b: 11.0 if 3 in (a, b) else 23.0 + 0.01 * (a + b)).encode()


def n21(job: Job) -> None:
    job.extra["pairs.csv"] = pairs_csv(10, lambda a, b: 23.0 if (a < 5) == (b < 5) else 12.0).encode()


def n22(job: Job) -> None:
    job.extra["pairs.csv"] = pairs_csv(10, lambda a, b: 9.0 if (a, b) == (2, 7) else 23.0).encode()


def n23(job: Job) -> None:
    job.extra["env.txt"] = b"PATH=/usr/bin\nHOME=/root\nNCCL_SOKET_IFNAME=eth0\n"


# --- GPUDirect and PCIe


def without_gdr(job: Job) -> None:
    job.replace(r"/GDRDMA(?:/Shared)?", "")
    job.replace(r"GDR 1", "GDR 0")


def g01(job: Job) -> None:
    without_gdr(job)
    for rank in job.ranks:
        said = (
            "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)"
            if job.number < (2, 16)
            else "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
        )
        job.early(rank, said)


def g02(job: Job) -> None:
    g01(job)
    job.extra["dmesg.txt"] = b"[   38.512000] nvidia_peermem: module loaded, supported by NVIDIA driver\n"


def g03(job: Job) -> None:
    without_gdr(job)
    for rank in job.ranks:
        gpu = f"{0x1A + 0x10 * job.speakers[rank].dev:x}000" if job.number < (2, 24) else str(rank)
        job.early(rank, f"NET/IB : GPU Direct RDMA Disabled for GPU {gpu} / HCA 0 (distance 4 > 3)")


def g04(job: Job) -> None:
    job.extra["lspci.txt"] = (
        b"17:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+\n"
        b"\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        b"18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n"
    )


def g05(job: Job) -> None:
    job.extra["dmesg.txt"] = (
        b"[    0.000000] Command line: BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on\n[    0.400000] iommu: Default domain type: Translated\n"
    )


def g07(job: Job) -> None:
    job.replace(
        r"via P2P/\S+(?: pointer\S*)?", "via direct shared memory" if job.number < (2, 16) else "via SHM/direct/direct"
    )
    job.everybody("NCCL_P2P_DISABLE set by environment to 1")


def g08(job: Job) -> None:
    job.lines.clear()
    rows_p2p = [(size, min(8.0, size / 2e6)) for size in SIZES]
    rows_shm = [(size, min(14.0, size / 2e6)) for size in SIZES]
    devices = [("gn01", "NVIDIA RTX 6000 Ada")] * 2
    for name, via, rows in (("p2p.log", "P2P/IPC", rows_p2p), ("shm.log", "SHM/direct/direct", rows_shm)):
        lines = [f"gn01:7:9 [0] NCCL INFO {body_channel(job, 0, 0, 1, via)}"]
        job.extra[name] = ("\n".join(lines) + "\n" + bench_output(rows, devices)).encode()
    job.extra["topo.txt"] = topo(2, "SYS").encode()


def g09(job: Job) -> None:
    job.extra["topo.txt"] = topo(8, "NV18", near, {(2, 5): "NV16"}).encode()


def g10(job: Job) -> None:
    job.say(
        0,
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'",
        "WARN",
        "transport/nvls.cc:170",
    )
    job.say(0, "transport/nvls.cc:300 -> 1")


def g11(job: Job) -> None:
    job.extra["topo.xml"] = topology_xml((1, 12)).encode()


def g12(job: Job) -> None:
    g03(job)
    job.extra["topo.txt"] = topo(4, "NV12", lambda gpu, nic: "PHB").encode()


def g13(job: Job) -> None:
    job.extra["topo.txt"] = topo(8, "NV18", lambda gpu, nic: "PIX" if gpu == nic and gpu != 6 else "NODE").encode()


def g14(job: Job) -> None:
    job.say(0, "Affinity for GPU 0 is empty, ignoring. (GPU affinity = 0-31 ; CPU affinity = 64-95).")


def g15(job: Job) -> None:
    rows = [(size, min(90.0, size / 2e6)) for size in SIZES]
    job.extra["bench.txt"] = bench_output(rows, [("gn01", H100)] * 8).encode()


# --- layout and speed


def timed(
    group: str, seq: int, op: str, created: float, started: float, completed: float, **more: object
) -> dict[str, object]:
    return {
        "group": group,
        "seq": seq,
        "op": op,
        "created": created,
        "started": started,
        "completed": completed,
        "state": "completed",
        **more,
    }


def l01(job: Job) -> None:
    world = len(job.speakers)
    half = world // 2
    groups = {"0": ("default_pg", list(range(world))), "1": ("TENSOR_MODEL_PARALLEL_GROUP", [half - 1, half])}
    for rank in (half - 1, half):
        job.extra[f"dump_rank_{rank}"] = recorder(rank, groups, [timed("1", 1, "all_reduce", 1.0, 1.001, 1.002)])


def steps_csv(
    job: Job,
    compute: Callable[[int, int], float],
    communication: Callable[[int, int], float],
    overlap: float = 1.0,
    tokens: Callable[[int, int], int] | None = None,
) -> bytes:
    rows = ["rank,step,step_time_ms,compute_ms,comm_ms" + (",tokens" if tokens else "")]
    for step in range(40):
        for rank in range(4):
            one, two = compute(rank, step), communication(rank, step)
            total = one + two - overlap * min(one, two)
            rows.append(f"{rank},{step},{total:.3f},{one:.3f},{two:.3f}" + (f",{tokens(rank, step)}" if tokens else ""))
    return ("\n".join(rows) + "\n").encode()


def l02(job: Job) -> None:
    job.extra["steps.csv"] = steps_csv(job, lambda r, s: 100 + 0.1 * r, lambda r, s: 60 + 0.1 * s, overlap=0.0)


def l03(job: Job) -> None:
    groups = {"7": ("PIPELINE_MODEL_PARALLEL_GROUP", [0, 1])}
    entries = [timed("7", i, "recv 1<-0", i * 0.1, i * 0.1, i * 0.1 + 0.06, p2p=True) for i in range(10)]
    job.extra["dump_rank_1"] = recorder(1, groups, entries)


def l04(job: Job) -> None:
    job.extra["steps.csv"] = steps_csv(
        job, lambda r, s: 150.0 if r == 2 else 100.0 + 0.1 * r, lambda r, s: 10.0 if r == 2 else 60.0
    )


def l05(job: Job) -> None:
    rows = ["rank,step,step_time_ms"] + [
        f"{rank},{step},{900 if step and step % 10 == 0 else 100 + step % 3}" for step in range(60) for rank in range(4)
    ]
    job.extra["steps.csv"] = ("\n".join(rows) + "\n").encode()


def l06(job: Job) -> None:
    def tokens(rank: int, step: int) -> int:
        return 1000 + 137 * ((rank * 7 + step * 3) % 11)

    job.extra["steps.csv"] = steps_csv(job, lambda r, s: tokens(r, s) / 10, lambda r, s: 5.0, tokens=tokens)


# --- hangs


def dumps(
    job: Job, entries: Callable[[int], list[dict[str, object]]], world: int = 4, ranks: range | None = None
) -> None:
    groups = {"0": ("default_pg", list(range(world)))}
    for rank in ranks or range(world):
        job.extra[f"dumps/nccl_trace_rank_{rank}"] = recorder(rank, groups, entries(rank))


def done(seq: int, op: str = "all_reduce") -> dict[str, object]:
    return {"group": "0", "seq": seq, "op": op, "state": "completed"}


def waiting(seq: int, op: str = "all_reduce", **more: object) -> dict[str, object]:
    return {"group": "0", "seq": seq, "op": op, **more}


def h01(job: Job) -> None:
    dumps(job, lambda rank: [done(7), done(8)] + ([] if rank == 2 else [waiting(9)]))


def h02(job: Job) -> None:
    dumps(job, lambda rank: [done(7), done(8), waiting(9)])


def h03(job: Job) -> None:
    dumps(job, lambda rank: [done(7), done(8), waiting(9, "broadcast" if rank == 1 else "all_reduce")])


def watchdog(rank: int, seq: int, op: str, numel: int) -> str:
    return f"[rank{rank}]:[E0619 12:00:0{rank % 10}.100000000 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600031 milliseconds before timing out."


def h04(job: Job) -> None:
    lines = [watchdog(rank, 2, "BROADCAST", 1) for rank in range(1, len(job.speakers))]
    job.extra["torch.log"] = ("\n".join(lines) + "\n").encode()


def h05(job: Job) -> None:
    lines = [watchdog(rank, 1, "ALLREDUCE", 4096) for rank in range(len(job.speakers))]
    job.extra["torch.log"] = ("\n".join(lines) + "\n").encode()


def h06(job: Job) -> None:
    job.extra["torch.log"] = (
        b"[rank3]:[F0619 12:00:00.000000000 ProcessGroupNCCL.cpp:1297] [PG 0 Rank 3] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"
    )


def h07(job: Job) -> None:
    job.extra["env.txt"] = b"PATH=/usr/bin\nHOME=/root\nTORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=300\nWORLD_SIZE=8\n"


def h08(job: Job) -> None:
    for rank in job.ranks:
        late = rank == len(job.speakers) - 1
        boot = 0.2 if late else 59.8
        job.say(
            rank,
            f"Init timings - ncclCommInitRank: rank {rank} nranks {len(job.speakers)} total {boot + 0.5:.2f} (kernels 0.10, bootstrap {boot:.2f}, allgathers 0.10, topo 0.10, graphs 0.10, connections 0.10, rest 0.00)",
        )


def h09(job: Job) -> None:
    said = (
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow this."
        if job.number >= (2, 30) else "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"
    )  # fmt: skip
    job.say(1, said, "WARN", "init.cc:795")
    job.say(1, "init.cc:1358 -> 5")


def h10(job: Job) -> None:
    job.say(0, "Mismatched NCCL version detected : rank 0 version 21903 rank 5 version 22005", "WARN", "init.cc:700")
    job.say(0, "init.cc:1358 -> 5")


def h11(job: Job) -> None:
    said = (
        "Call to posix_fallocate failed : No space left on device" if job.number < (2, 18)
        else "Error: failed to extend /dev/shm/nccl-aBcDeF to 9637892 bytes, error: No space left on device (28)"
    )  # fmt: skip
    job.say(1, said, "WARN", "misc/shmutils.cc:72")
    job.say(1, "misc/shmutils.cc:114 -> 2")


def h12(job: Job) -> None:
    job.extra["torch.log"] = (watchdog(3, 4711, "ALLREDUCE", 1 << 20) + "\n").encode()


# --- processes


def elastic(rank: int, code: int, pid: int = 4242, message: str = "") -> str:
    return f"E0619 12:00:00.000000 139 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: /usr/bin/python3\n"


def p01(job: Job) -> None:
    job.extra["torch.log"] = elastic(1, -9).encode()
    job.extra["dmesg.txt"] = (
        b"[ 4242.424242] Out of memory: Killed process 4242 (python3) total-vm:90000000kB, anon-rss:64000000kB, file-rss:0kB, shmem-rss:0kB, UID:1000\n"
    )


def p02(job: Job) -> None:
    job.extra["torch.log"] = (
        b"[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.15 GiB of which 1.10 GiB is free.\n"
    )


def p03(job: Job) -> None:
    job.extra["torch.log"] = (
        b'[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 10, in <module>\n[rank1]:     batch = data["tokens"]\n[rank1]: KeyError: \'tokens\'\n'
    )


def p04(job: Job) -> None:
    job.extra["torch.log"] = (
        b"[rank1]: Traceback (most recent call last):\n[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, remote process exited or there was a network error, NCCL version 2.19.3\n"
    )


def p05(job: Job) -> None:
    job.extra["torch.log"] = elastic(1, -11).encode()


def p06(job: Job) -> None:
    job.extra["slurm.out"] = (
        b"slurmstepd: error: *** STEP 77.0 ON gn01 CANCELLED AT 2024-06-19T12:00:00 DUE TO TIME LIMIT ***\n"
    )


def p07(job: Job) -> None:
    job.extra["torch.log"] = (
        b"[rank1]:[W0619 12:00:00.000000000 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=81, addr=[gn01]:41234, remote=[gn01]:29500): Connection reset by peer\n"
    )


def p08(job: Job) -> None:
    job.extra["slurm.out"] = (
        b"slurmstepd: error: *** STEP 77.0 ON gn01 CANCELLED AT 2024-06-19T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
    )


def p09(job: Job) -> None:
    job.extra["torch.log"] = (
        b"[rank3]: Traceback (most recent call last):\n[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )


# --- GPU and kernel errors


def xid(code: int, message: str) -> bytes:
    return f"[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): {code}, {message}\n".encode()


def x01(job: Job) -> None:
    job.extra["dmesg.txt"] = xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


def x02(job: Job) -> None:
    job.extra["dmesg.txt"] = xid(95, "pid=2024, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")


def x03(job: Job) -> None:
    job.extra["dmesg.txt"] = xid(
        31,
        "pid=2024, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f54_5e000000.",
    )


def x04(job: Job) -> None:
    job.extra["dmesg.txt"] = xid(
        119, "pid=2024, name=python3, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76."
    )


def x05(job: Job) -> None:
    job.extra["dmesg.txt"] = (
        b"[  111.500000] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 44 LTSSM Fault Up\n"
    )


def x06(job: Job) -> None:
    job.extra["dmesg.txt"] = xid(109, "pid=2024, name=python3, Ch 00000018, errorString CTX SWITCH TIMEOUT")


def x07(job: Job) -> None:
    job.extra["dmesg.txt"] = (
        b"[  111.500000] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800400\n"
    )


def u01(job: Job) -> None:
    job.say(1, "No transport found for rank 1[1a000] -> rank 2[1b000]", "WARN", "transport.cc:41")
    job.say(1, "transport.cc:148 -> 3")


CASES: dict[str, Case] = {
    "N01": Case(n01), "N02": Case(n02), "N03": Case(n03), "N04": Case(n04), "N05": Case(n05), "N06": Case(n06),
    "N07": Case(n07), "N08": Case(n08), "N09": Case(n09, companions=("N11",)), "N10": Case(n10), "N11": Case(n11),
    "N12": Case(n12), "N13": Case(n13), "N14": Case(n14, "files"), "N15": Case(n15, "files"), "N16": Case(n16),
    "N17": Case(n17, companions=("N09",)), "N18": Case(n18, "files"), "N19": Case(n19, "files"), "N20": Case(n20, "files"),
    "N21": Case(n21, "files"), "N22": Case(n22, "files"),
    "N23": Case(n23, "files"),
    "G01": Case(g01), "G02": Case(g02, since="2.19", until="2.23.4"), "G03": Case(g03), "G04": Case(g04, "files"), "G05": Case(g05, "files"),
    "G07": Case(g07, "single"), "G08": Case(g08, "files"), "G09": Case(g09, "files"),
    "G10": Case(g10, since="2.17"), "G11": Case(g11, "files"), "G12": Case(g12), "G13": Case(g13, "files"),
    "G14": Case(g14, "single"), "G15": Case(g15, "files"),
    "L01": Case(l01), "L02": Case(l02, "files"), "L03": Case(l03, "files"), "L04": Case(l04, "files"),
    "L05": Case(l05, "files"), "L06": Case(l06, "files"),
    "H01": Case(h01, "files"), "H02": Case(h02, "files"), "H03": Case(h03, "files"), "H04": Case(h04, companions=("H12",)),
    "H05": Case(h05, companions=("H12",)), "H06": Case(h06, "files"), "H07": Case(h07, "files"),
    "H08": Case(h08, since="2.19"), "H09": Case(h09), "H10": Case(h10, since="2.19"), "H11": Case(h11), "H12": Case(h12, "files"),
    "P01": Case(p01, "files", companions=("P05",)), "P02": Case(p02, "files"), "P03": Case(p03, "files"),
    "P04": Case(p04, "files"), "P05": Case(p05, "files"), "P06": Case(p06, "files"), "P07": Case(p07, "files"),
    "P08": Case(p08, "files"), "P09": Case(p09, "files"),
    "X01": Case(x01, "files"), "X02": Case(x02, "files"), "X03": Case(x03, "files"), "X04": Case(x04, "files"),
    "X05": Case(x05, "files"), "X06": Case(x06, "files"), "X07": Case(x07, "files"), "U01": Case(u01),
}  # fmt: skip
