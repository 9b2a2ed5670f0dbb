"""Sends and receives: how NCCL cuts messages into parts, by its version, and what they cost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.simulator.communicator import communicator
from atoll.simulator.nccl import predict
from atoll.simulator.nccl_environment import nccl_environment
from atoll.simulator.nccl_point_to_point import Channels, channels_for, parts_of, point_to_point_time
from atoll.simulator.nccl_time import Factors
from atoll.topology.presets import preset

NEW = nccl_environment(None, "all_to_all")
OLD = nccl_environment(None, "all_to_all", "2.27.3")
KIB = 1024


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        # 24 channels (NVIDIA/nccl-tests issue 100) are rounded up to 32; all peers and the rank itself share them.
        ("dgx-a100", 2, Channels(32, 16, 32)),
        ("dgx-a100", 8, Channels(32, 4, 32)),
        ("dgx-h100", 4, Channels(32, 8, 32)),
        ("gb200-nvl72", 72, Channels(32, 1, 32)),
        ("l40s-pcie", 2, Channels(4, 2, 2)),
    ],
)
def test_channels_are_shared_among_peers(name: str, gpus: int, expected: Channels) -> None:
    assert channels_for(communicator(preset(name), gpus), NEW) == expected


def test_channels_across_the_network_are_few() -> None:
    assert channels_for(communicator(preset("dgx-h100", 2)), NEW).most == 2
    assert channels_for(communicator(preset("dgx-h100", 32)), NEW).most == 1


def test_ll_until_sixteen_kibibytes_a_part_and_how_parts_were_counted_before() -> None:
    """2.27 lets a message of 512 KiB go by LL, as if all 32 channels carried it; 2.29 none beyond 16 KiB."""
    comm = communicator(preset("dgx-a100"))
    channels = channels_for(comm, NEW)
    for kib, new, old in ((16, "LL", "LL"), (17, "Simple", "LL"), (512, "Simple", "LL"), (513, "Simple", "Simple")):
        assert parts_of(comm, kib * KIB, channels, NEW).protocol == new
        assert parts_of(comm, kib * KIB, channels, OLD).protocol == old
    last_old = nccl_environment(None, "all_to_all", "2.28.3")
    assert parts_of(comm, 512 * KIB, channels, last_old).protocol == "LL"
    assert parts_of(comm, 512 * KIB, channels, nccl_environment(None, "all_to_all", "2.29")).protocol == "Simple"
    for kib, expected in ((1, 1), (64, 1), (65, 2), (129, 3), (4096, 4), (64 * KIB, 4), (100 * KIB, 8)):
        assert parts_of(comm, kib * KIB, channels, NEW).count == expected


def test_nccls_variables_of_sends_and_receives() -> None:
    comm = communicator(preset("dgx-a100"))
    few = nccl_environment({"NCCL_MAX_P2P_NCHANNELS": "8"}, "all_to_all")
    assert channels_for(comm, few) == Channels(8, 1, 8)
    each = nccl_environment({"NCCL_NCHANNELS_PER_PEER": "2"}, "all_to_all")
    assert channels_for(comm, each) == Channels(32, 2, 2)
    for threshold, expected in ((0, "Simple"), (1 << 20, "LL")):
        environment = nccl_environment({"NCCL_P2P_LL_THRESHOLD": str(threshold)}, "all_to_all")
        assert parts_of(comm, 64 * KIB, channels_for(comm, environment), environment).protocol == expected
    found = predict(preset("dgx-a100"), "all_to_all", 1 << 20, environment={"NCCL_P2P_LL_THRESHOLD": "1048576"})
    assert (found.protocol, found.notes) == ("LL", ())
    assert "LL up to 1048576 bytes a channel" in found.reason
    with pytest.raises(SpecError, match="NCCL_P2P_LL_THRESHOLD: expected a whole number"):
        nccl_environment({"NCCL_P2P_LL_THRESHOLD": "16K"}, "all_to_all")


def test_versions_are_read_and_what_is_none_is_refused() -> None:
    assert nccl_environment(None, "all_reduce", "2.26.2+cuda12.8").version == (2, 26, 2)
    assert nccl_environment(None, "all_reduce", "2.8").version == (2, 8)
    assert nccl_environment(None, "all_reduce", "v2.28.3-1").version == (2, 28, 3)
    for text in ("", "new", "2", "2.x"):
        with pytest.raises(SpecError, match="NCCL's version"):
            nccl_environment(None, "all_reduce", text)
    cluster = preset("dgx-a100")
    found = {version: predict(cluster, "all_to_all", 1 << 20, version=version) for version in ("2.27.3", "2.29.2")}
    assert (found["2.27.3"].protocol, found["2.29.2"].protocol) == ("LL", "Simple")
    assert found["2.27.3"].channels == 4


def test_side_by_side_blocks_start_later_than_one() -> None:
    """The factor that all-reduce shows as its channels fill; a single peer's small message has one block."""
    slower = Factors(ll_full=1.5)
    for gpus, times in ((2, 1.0), (4, 1.5), (8, 1.5)):
        comm = communicator(preset("dgx-h100"), gpus)
        plain, found = (point_to_point_time(comm, "all_to_all", 512, NEW, one)[0] for one in (Factors(), slower))
        assert found.latency_s == pytest.approx(times * plain.latency_s)


def test_large_messages_over_nvlink_wait_for_their_last_chunk_and_over_pcie_do_not() -> None:
    """Half of what a rank sends stays with it on 2 GPUs. 16 channels hold 8 MiB of chunks, copied at twice the rate."""
    comm = communicator(preset("l40s-pcie"), 2)
    found, _ = point_to_point_time(comm, "all_to_all", 1 << 24, NEW)
    assert found.transfer_s == pytest.approx((1 << 23) / 24e9, rel=0.01)
    nvlink = communicator(preset("dgx-a100"), 2)
    for size in (1 << 24, 1 << 26):
        found, parts = point_to_point_time(nvlink, "all_to_all", size, NEW)
        assert parts.count == 16
        assert found.transfer_s == pytest.approx(max((size / 2 + (4 << 20)) / (0.875 * 240e9), size / 2 / (16 * 12e9)))


@given(
    name=st.sampled_from(["dgx-a100", "dgx-h100", "hgx-b200", "l40s-pcie", "gb200-nvl72"]),
    gpus=st.integers(2, 8),
    size=st.integers(1, 2**34),
    version=st.sampled_from(["2.18.3", "2.27.3", "2.29.2", "2.30.7"]),
)
@settings(max_examples=80)
def test_parts_fit_their_channels_and_no_link_is_exceeded(name: str, gpus: int, size: int, version: str) -> None:
    comm = communicator(preset(name, nodes=2 if name == "gb200-nvl72" else 1), gpus)
    environment = nccl_environment(None, "all_to_all", version)
    channels = channels_for(comm, environment)
    assert 1 <= channels.least <= channels.most <= channels.all <= 32
    time, parts = point_to_point_time(comm, "all_to_all", size, environment)
    assert 1 <= parts.count <= channels.most
    # No time below what the links need for what leaves a rank.
    assert time.transfer_s >= size * (gpus - 1) / gpus / comm.exchange_bytes_per_s * 0.999


def test_efa_is_slower_is_told_to_be_slower_still_and_keeps_no_order_on_p4d() -> None:
    """A hop of 20 us with LL, aws-ofi-nccl; the tuner hears 75 us and Simple pays it twice; p4d has Simple alone."""
    p5, infiniband = (communicator(preset(name, 2)) for name in ("aws-p5", "dgx-h100"))
    assert infiniband.network_latency_s == 0
    assert p5.network_latency_s == pytest.approx(15e-6, rel=0.05)
    assert (p5.told_latency_us, infiniband.told_latency_us) == (75.0, 0.0)
    assert predict(preset("aws-p5", 2), "all_reduce", 16 << 20).protocol == "LL128"
    assert predict(preset("dgx-h100", 2), "all_reduce", 16 << 20).protocol == "Simple"
    for collective in ("all_reduce", "all_to_all"):
        found = predict(preset("aws-p4d", 2), collective, 8)
        assert found.protocol == "Simple"
        assert predict(preset("aws-p4d", 2), collective, 8, environment={"NCCL_PROTO": "LL"}).protocol == "LL"
        assert predict(preset("aws-p4d"), collective, 8).protocol == "LL"
    assert msgspec.structs.asdict(communicator(preset("aws-p4d", 2)))["ordered"] is False
