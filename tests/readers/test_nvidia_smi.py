"""nvidia-smi: table, -q, -L and CSV."""

# ruff: noqa: E501 (lines as programs print them)

import pytest

from atoll.errors import SpecError
from atoll.readers.nvidia_smi import read_nvidia_smi

TABLE = """\
Thu Jan  1 00:00:00 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   30C    P0             69W /  700W |       1MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          ERR! |   00000000:43:00.0 ERR! |                 ERR! |
|ERR!  ERR! ERR!          ERR! / ERR! |     GPU is off       | ERR!      ERR! |
|   2  NVIDIA H100 80GB HBM3          Off |   00000000:52:00.0 Off |                    3 |
| 45%   85C    P2            690W /  700W |   70001MiB /  81559MiB |    100%      Default |
"""

QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Jan  1 00:00:00 2025
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-abc
    PCI
        Bus Id                            : 00000000:07:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 3
            Link Width
                Max                       : 16x
                Current                   : 8x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81920 MiB
        Used                              : 4 MiB
    BAR1 Memory Usage
        Used                              : 9 MiB
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 5
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 1
            DRAM Uncorrectable            : 2
    Remapped Rows
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 88 C
        GPU Shutdown Temp                 : 92 C
    GPU Power Readings
        Power Draw                        : 68.51 W
        Current Power Limit               : 400.00 W
    Clocks
        SM                                : 345 MHz
    Max Clocks
        SM                                : 1410 MHz
    Fabric
        State                             : Completed
GPU 00000000:0F:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    GPU UUID                              : GPU-def
    Temperature
        GPU Current Temp                  : N/A
"""


def test_the_table() -> None:
    smi = read_nvidia_smi(TABLE, "smi")
    assert (smi.driver_version, smi.cuda_version, smi.form) == ("550.54.15", "12.4", "table")
    cool, lost, hot = smi.gpus
    assert (cool.index, cool.name, cool.bus_id, cool.persistence) == (
        0,
        "NVIDIA H100 80GB HBM3",
        "00000000:1b:00.0",
        True,
    )
    assert (cool.temperature_c, cool.power_w, cool.power_limit_w, cool.performance_state) == (30.0, 69.0, 700.0, "P0")
    assert (cool.memory_used_bytes, cool.memory_total_bytes) == (1 << 20, 81559 << 20)
    assert (cool.ecc_uncorrected, cool.compute_mode, cool.error) == (0, "Default", "")
    assert (lost.index, lost.error, lost.ecc_uncorrected, lost.temperature_c) == (1, "ERR!", None, None)
    assert (hot.index, hot.temperature_c, hot.utilization_percent, hot.ecc_uncorrected) == (2, 85.0, 100.0, 3)
    assert (hot.persistence, hot.source.line) == (False, 15)


def test_the_query() -> None:
    smi = read_nvidia_smi(QUERY, "smi")
    assert (smi.driver_version, smi.cuda_version, smi.form) == ("535.104.05", "12.2", "query")
    first, second = smi.gpus
    assert (first.index, first.bus_id, first.uuid, first.name) == (
        0,
        "00000000:07:00.0",
        "GPU-abc",
        "NVIDIA A100-SXM4-80GB",
    )
    assert (first.pcie_generation, first.pcie_generation_max, first.pcie_width, first.pcie_width_max) == (3, 4, 8, 16)
    assert first.slowdowns == ("HW Slowdown", "HW Thermal Slowdown")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (4 << 20, 81920 << 20)
    assert (first.ecc_uncorrected, first.ecc_corrected) == (3, 0), "aggregate: SRAM and DRAM together"
    assert (first.remap_pending, first.remap_failed, first.mig, first.persistence) == (True, False, False, True)
    assert (first.temperature_c, first.power_w, first.power_limit_w) == (88.0, 68.51, 400.0)
    assert (first.sm_clock_mhz, first.max_sm_clock_mhz, first.fabric_state) == (345.0, 1410.0, "Completed")
    assert first.further["Temperature/GPU Shutdown Temp"] == "92 C"
    assert (second.index, second.uuid, second.temperature_c, second.slowdowns) == (1, "GPU-def", None, ())


def test_old_drivers_say_throttle() -> None:
    smi = read_nvidia_smi(QUERY.replace("Clocks Event Reasons", "Clocks Throttle Reasons"), "smi")
    assert smi.gpus[0].slowdowns == ("HW Slowdown", "HW Thermal Slowdown")


def test_csv() -> None:
    text = (
        "index, name, pci.bus_id, driver_version, clocks.sm [MHz], clocks_event_reasons.active, temperature.gpu, "
        "ecc.errors.uncorrected.aggregate.total\n"
        "0, NVIDIA H100, 00000000:1B:00.0, 550.1, 345 MHz, 0x0000000000000048, 40, 2\n"
        "1, NVIDIA H100, 00000000:2B:00.0, 550.1, 1980 MHz, 0x0000000000000001, [N/A], 0\n"
    )
    smi = read_nvidia_smi(text, "smi.csv")
    assert (smi.form, smi.driver_version) == ("csv", "550.1")
    assert [
        (gpu.index, gpu.sm_clock_mhz, gpu.slowdowns, gpu.temperature_c, gpu.ecc_uncorrected) for gpu in smi.gpus
    ] == [
        (0, 345.0, ("HW Slowdown", "HW Thermal Slowdown"), 40.0, 2),
        (1, 1980.0, (), None, 0),
    ]


def test_csv_with_a_column_for_each_reason() -> None:
    text = "index, uuid, clocks_throttle_reasons.hw_slowdown, clocks_throttle_reasons.sw_power_cap, pstate\n"
    smi = read_nvidia_smi(text + "3, GPU-a, Not Active, Active, P0\n", "smi.csv")
    assert smi.gpus[0].slowdowns == ("SW Power Cap",)


def test_the_list() -> None:
    text = "GPU 0: NVIDIA A100 (UUID: GPU-12345678)\n  MIG 3g.20gb     Device  0: (UUID: MIG-1)\nGPU 1: NVIDIA A100 (UUID: GPU-9876)\n"
    smi = read_nvidia_smi(text, "smi")
    assert [(gpu.index, gpu.uuid, gpu.mig) for gpu in smi.gpus] == [(0, "GPU-12345678", True), (1, "GPU-9876", None)]


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error",
        "No devices were found",
    ],
)
def test_its_own_failure_is_a_fact(text: str) -> None:
    smi = read_nvidia_smi(text + "\n", "smi")
    assert smi.gpus == ()
    assert smi.error.rstrip(".") in text


def test_other_text_is_refused() -> None:
    with pytest.raises(SpecError, match="smi: no nvidia-smi output"):
        read_nvidia_smi("hello\n1,2,3\n", "smi")
