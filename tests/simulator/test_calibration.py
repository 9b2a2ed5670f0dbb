"""Calibration: it finds what it should, keeps its provenance, and its intervals come from what it missed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from atoll.errors import SpecError
from atoll.simulator.accuracy_record import HELD_OUT_SPREADS, PRESET_SPREADS
from atoll.simulator.calibration import MAX_FITTED, Calibration, Observation, Source, calibrate
from atoll.simulator.calibration_file import read_calibration, write_calibration
from atoll.simulator.communicator import communicator
from atoll.simulator.nccl import predict, predict_for
from atoll.simulator.nccl_environment import nccl_environment
from atoll.simulator.nccl_time import Factors
from atoll.simulator.prediction import Spread, band_of, interval, ranking, spread_of, spreads_by_band
from atoll.topology.presets import preset

SIZES = [2**exponent for exponent in range(3, 34, 2)]


def made_up(truth: Factors, gpus: tuple[int, ...] = (2, 8), noise: float = 0.0) -> list[Observation]:
    """What a DGX A100 would measure if its factors were ``truth``."""
    draw = np.random.default_rng(7)
    told = Calibration("truth", "", truth, (), PRESET_SPREADS)
    rows = []
    for count in gpus:
        comm = communicator(preset("dgx-a100"), count)
        for size in SIZES:
            found = predict_for(comm, "all_reduce", size, nccl_environment(None, "all_reduce"), calibration=told)
            rows.append(Observation(comm, "all_reduce", size, found.time_s * float(np.exp(draw.normal(0, noise)))))
    return rows


def test_factors_are_found_again() -> None:
    truth = Factors(ll_base=1.5, ll_hop=0.8, bandwidth=0.7, simple_base=2.0, wide=1.2, ll_full=1.3)
    found = calibrate(made_up(truth), "made up", "dgx-a100")
    assert len(found.fitted) <= MAX_FITTED
    for name in found.fitted:
        assert getattr(found.factors, name) == pytest.approx(getattr(truth, name), rel=0.05)
    for spread in found.spreads:
        assert 0.97 < spread.low <= spread.high < 1.03


def test_one_wild_row_does_not_pull_the_others() -> None:
    rows = made_up(Factors(bandwidth=0.8))
    wild = [*rows[:-1], msgspec.structs.replace(rows[-1], time_s=rows[-1].time_s * 10)]
    assert calibrate(wild, "", "").factors.bandwidth == pytest.approx(0.8, rel=0.05)


def test_no_more_factors_than_rows_and_none_without_evidence() -> None:
    few = calibrate(made_up(Factors(ll_base=2.0))[:3], "", "")
    assert len(few.fitted) <= 2
    assert "bandwidth" not in few.fitted or few.factors.bandwidth == pytest.approx(1, rel=0.3)
    assert few.factors.network_bandwidth == 1.0
    with pytest.raises(SpecError, match="at least 2 sizes"):
        calibrate(made_up(Factors())[:1], "", "")


def test_intervals_are_the_residuals_where_it_was_fitted_and_the_record_elsewhere() -> None:
    sources = [Source("made", "all_reduce", count, len(SIZES)) for count in (2, 8)]
    found = calibrate(made_up(Factors(bandwidth=0.8), noise=0.02), "made up", "dgx-a100", sources)
    cluster = preset("dgx-a100")
    mine = predict(cluster, "all_reduce", 1 << 30, 8, calibration=found)
    held_out = predict(cluster, "all_reduce", 1 << 30, 4, calibration=found)
    plain = predict(cluster, "all_reduce", 1 << 30, 4)
    assert mine.calibration == "made up"
    assert mine.spread == found.spreads[3]
    assert held_out.spread.low <= HELD_OUT_SPREADS[3].low
    assert held_out.spread.high >= HELD_OUT_SPREADS[3].high
    assert plain.spread == PRESET_SPREADS[3]
    widths = [(one.interval[1] - one.interval[0]) / one.time_s for one in (mine, held_out)]
    assert widths[0] < widths[1]


def test_a_stored_calibration_is_read_back_and_keeps_where_it_came_from() -> None:
    sources = [Source('we"ird \\ name\n.log', "all_reduce", 8, 16, "2.27.3")]
    found = calibrate(made_up(Factors(ll_base=1.4)), "a name", "dgx-a100", sources, "atoll 0")
    text = write_calibration(found)
    again = read_calibration(text.encode(), "file.toml")
    assert again.sources == found.sources
    assert (again.name, again.cluster, again.fitted, again.made_with) == ("a name", "dgx-a100", found.fitted, "atoll 0")
    ours, theirs = (
        predict(preset("dgx-a100"), "all_reduce", 1 << 22, calibration=one).time_s for one in (found, again)
    )
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("format = 1", "format = 2"), "expected format = 1"),
        (("[factors]", "[factros]"), "did you mean 'factors'"),
        (("ll_base =", "ll_bass ="), "did you mean 'll_base'"),
        (("low = 0.9", "low = 9.9"), "above high"),
        (('[[band]]\nsizes = "to 4 MiB"', '[[band]]\nsizes = "to 5 MiB"'), "expected sizes = 'to 4 MiB'"),
        (("format = 1", "format = "), "no calibration"),
    ],
)
def test_files_that_were_changed_are_refused_with_the_place(change: tuple[str, str], word: str) -> None:
    made = Calibration("n", "c", Factors(ll_base=1.5), ("ll_base",), (Spread(5, 1.0, 0.9, 1.1),) * 4)
    text = write_calibration(made)
    assert change[0] in text
    with pytest.raises(SpecError, match=word) as caught:
        read_calibration(text.replace(*change, 1).encode(), "mine.toml")
    assert "mine.toml" in str(caught.value)


def test_bands_and_spreads() -> None:
    assert [band_of(size) for size in (0, 65535, 65536, 4 << 20, (4 << 20) + 1, 64 << 20, (64 << 20) + 1)] == [
        0, 0, 1, 1, 2, 2, 3,
    ]  # fmt: skip
    assert spread_of([2.0, 1.0, 4.0]) == Spread(3, 2.0, 1.0, 4.0)
    assert spread_of(list(range(1, 12))).low == 2.0
    spreads = spreads_by_band([8, 1 << 30], [1.1, 0.9])
    assert [one.known for one in spreads] == [True, False, False, True]
    assert interval(10.0, Spread(9, 1.2, 1.1, 1.3)) == (10.0, 13.0)


def test_plans_whose_intervals_overlap_share_a_rank() -> None:
    assert ranking([1.0, 2.0, 1.5], [(0.9, 1.1), (1.9, 2.1), (1.2, 1.6)]) == [1, 3, 2]
    # 1 and 3 do not overlap, but 2 lies between them: none of the three can be told from its neighbour.
    assert ranking([1.0, 1.3, 1.6, 9.0], [(0.8, 1.2), (1.1, 1.5), (1.4, 1.8), (8.0, 10.0)]) == [1, 1, 1, 4]
