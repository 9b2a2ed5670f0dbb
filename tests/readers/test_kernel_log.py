"""dmesg, kmsg, journal and syslog."""

# ruff: noqa: E501 (lines as programs print them)

from collections import Counter
from pathlib import Path

import pytest

from atoll.readers.kernel_log import (
    GpuDriverMessage,
    IommuState,
    KernelFact,
    LinkChange,
    MachineCheck,
    OutOfMemoryKill,
    PcieError,
    ProcessFault,
    RdmaDriverMessage,
    Sxid,
    Xid,
    read_kernel_log,
)


@pytest.mark.parametrize(
    ("line", "kind", "values"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", Xid,
         {"code": 79, "bus_id": "0000:9b:00", "pid": 1234, "process": "python3"}),
        ("NVRM: Xid (PCI:0000:CB:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception", Xid,
         {"code": 13, "bus_id": "0000:cb:00", "pid": None, "process": ""}),
        ("NVRM: Xid (0000:01:00): 43, Ch 00000018, engmask 00000101", Xid, {"code": 43, "bus_id": "0000:01:00"}),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", Xid,
         {"code": 145, "unit": "RLW_RXPIPE", "fatal": False, "link": 13, "registers": (0x0409A0C2, 8)}),
        ("NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", Xid,
         {"fatal": True, "link": 0}),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149", Xid,
         {"code": 45, "caused_by": 149}),
        ("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", Sxid,
         {"code": 22013, "switch": "nvidia-nvswitch3", "fatal": False, "link": 44}),
        ("nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", Sxid, {"fatal": True}),
        ("nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 12028, Data {0x000001c0}", Sxid, {"fatal": None, "link": None}),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03", GpuDriverMessage, {"kind": "driver_loaded"}),
        ("NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)", GpuDriverMessage,
         {"kind": "init_failed", "bus_id": "0000:9b:00"}),
        ("Out of memory: Killed process 1234 (python3) total-vm:9kB, anon-rss:2048kB, file-rss:0kB, shmem-rss:1024kB",
         OutOfMemoryKill, {"pid": 1234, "process": "python3", "cgroup": False, "resident_bytes": 3 << 20}),
        ("Memory cgroup out of memory: Killed process 77 (pt_main_thread) total-vm:9kB, anon-rss:1kB", OutOfMemoryKill,
         {"cgroup": True, "resident_bytes": 1024}),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/job_2,task=python,pid=77,uid=1",
         OutOfMemoryKill, {"cgroup": True, "pid": 77, "cgroup_path": "/slurm/job_2"}),
        ("mlx5_core 0000:9a:00.0 ens1np0: Link down", LinkChange,
         {"interface": "ens1np0", "up": False, "driver": "mlx5_core", "bus_id": "0000:9a:00.0"}),
        ("ice 0000:31:00.0 eth0: NIC Link is Up 100 Gbps", LinkChange, {"interface": "eth0", "up": True}),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready", LinkChange, {"interface": "ib0", "up": True}),
        ("bond0: (slave eth2): link status definitely down, disabling slave", LinkChange, {"interface": "eth2", "up": False}),
        ("mlx5_core 0000:9a:00.0: Port module event: module 0, Cable unplugged", RdmaDriverMessage,
         {"driver": "mlx5_core", "bus_id": "0000:9a:00.0", "message": "Port module event: module 0, Cable unplugged"}),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", PcieError,
         {"bus_id": "0000:01:00.0", "severity": "Corrected"}),
        ("nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)", PcieError,
         {"bus_id": "0000:01:00.0", "severity": "Uncorrected (Fatal)", "driver": "nvme"}),
        ("iommu: Default domain type: Translated", IommuState, {}),
        ("Command line: BOOT_IMAGE=/vmlinuz ro intel_iommu=on", IommuState, {}),
        ("mce: [Hardware Error]: Machine check events logged", MachineCheck, {"kind": "machine_check"}),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:77]", MachineCheck, {"kind": "soft_lockup"}),
        ("INFO: task python3:123 blocked for more than 120 seconds.", MachineCheck, {"kind": "hung_task"}),
        ("python3[999]: segfault at 0 ip 0000 sp 0000 error 4 in libnccl.so.2", ProcessFault, {"process": "python3", "pid": 999}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["dmesg", "ctime", "kmsg", "syslog", "decoded"])
def test_line(line: str, kind: type[KernelFact], values: dict[str, object], form: str) -> None:
    before, time, time_s, host = {
        "dmesg": ("[   38.174242] ", "38.174242", 38.174242, ""),
        "ctime": ("[Sun Feb 23 16:24:18 2025] ", "Sun Feb 23 16:24:18 2025", None, ""),
        "kmsg": ("6,3964,206764307,-;", "206764307", 206.764307, ""),
        "syslog": ("Mar 10 01:33:03 node-7 kernel: [123.45] ", "Mar 10 01:33:03", 123.45, "node-7"),
        "decoded": ("kern  :err   : 2025-01-25T10:34:54,859532+00:00 ", "2025-01-25T10:34:54,859532+00:00", None, ""),
    }[form]
    (fact,) = read_kernel_log(f"\n{before}{line}\n", "dmesg")
    assert type(fact) is kind
    assert {name: getattr(fact, name) for name in values} == values
    assert (fact.stamp.time, fact.stamp.time_s, fact.stamp.host) == (time, time_s, host)
    assert fact.source.line == 2


def test_a_gpu_lost_without_an_xid_is_named_by_the_line_before() -> None:
    text = (
        "[ 1843.30] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    (fact,) = read_kernel_log(text, "dmesg")
    assert isinstance(fact, GpuDriverMessage)
    assert (fact.kind, fact.bus_id) == ("fallen_off_bus", "0000:b3:00")


@pytest.mark.parametrize(
    "line",
    [
        "Link down the page to read more",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "Killed",
        "[2.0] usb 1-1: new device",
    ],
)
def test_lines_that_are_not_the_kernels(line: str) -> None:
    assert read_kernel_log(line, "x") == ()


def test_real_logs(cases: Path) -> None:
    facts = read_kernel_log((cases / "kernel_log/gpud_xid119.log").read_bytes(), "xid119")
    assert Counter(type(fact).__name__ for fact in facts) == {"Xid": 5, "GpuDriverMessage": 1}
    assert {(fact.code, fact.bus_id) for fact in facts if isinstance(fact, Xid)} == {(119, "0000:9b:00")}
    assert [fact.source.line for fact in facts if isinstance(fact, Xid)] == [3, 38, 40, 42, 43]
    links = read_kernel_log((cases / "kernel_log/gpud_kmsg_1.log").read_bytes(), "kmsg")
    assert {type(fact) for fact in links} == {LinkChange}
    assert all(fact.up for fact in links if isinstance(fact, LinkChange))
