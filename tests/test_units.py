"""Sizes, bandwidths and durations as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError, nearest
from atoll.units import (
    format_bandwidth,
    format_duration,
    format_size,
    format_size_argument,
    format_storage_size,
    parse_bandwidth,
    parse_duration,
    parse_fraction,
    parse_size,
    parse_storage_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("8", 8),
        ("4K", 4096),
        ("128M", 128 << 20),
        ("1.5GiB", 3 << 29),
        ("64kb", 65536),
        (" 2 T ", 2 << 40),
        ("9007199254740993", 2**53 + 1),
        ("0.0009765625K", 1),
        (f"{2**63 - 1}", 2**63 - 1),
    ],
)
def test_sizes_are_binary(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "M", "1Q", "1e99", "1e999999999", "1e-999999999", str(2**63), "0x10", "1 2", "nan", "inf"]
)
def test_bad_sizes_are_refused_with_the_text(text: str) -> None:
    with pytest.raises(SpecError, match="-b") as caught:
        parse_size(text, "-b")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("50GB/s", 50e9), ("400Gb/s", 50e9), ("400Gbit/s", 50e9), ("400Gbps", 50e9), ("1e9", 1e9), ("1.5TB/s", 1.5e12)],
)
def test_bandwidths_are_decimal_and_know_bits_from_bytes(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("text", "seconds"), [("35us", 35e-6), ("1.5ms", 1.5e-3), ("60", 60), ("15min", 900), ("100d", 8.64e6), ("2s", 2)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "1 fortnight", "-1s", "1e999"])
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("2.3TB", 2_300_000_000_000), ("2tib", 2 << 40), ("100", 100), ("7 B", 7), ("40 gb", 40_000_000_000)],
)
def test_sizes_in_storage_are_decimal_unless_they_say_otherwise(text: str, size_bytes: int) -> None:
    assert parse_storage_size(text) == size_bytes


@pytest.mark.parametrize("text", ["2.3T", "", "-1TB", "TB", "9e9TB", "1QB"])
def test_bad_sizes_in_storage_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--checkpoint"):
        parse_storage_size(text, "--checkpoint")


@pytest.mark.parametrize(("text", "share"), [("75%", 0.75), ("0.75", 0.75), ("1 %", 0.01), ("0", 0), ("100%", 1)])
def test_fractions(text: str, share: float) -> None:
    assert parse_fraction(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "2", "-1%", "half", "", "%"])
def test_bad_fractions_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="share"):
        parse_fraction(text)


@given(st.integers(0, 2**60))
def test_an_exact_size_survives_printing(size_bytes: int) -> None:
    assert parse_size(format_size_argument(size_bytes)) == size_bytes


@given(st.floats(1e-9, 1e9))
def test_a_printed_duration_is_within_a_percent(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.01, abs=1e-9)


def test_people_read() -> None:
    assert format_size(1023) == "1023 B"
    assert format_size(3 << 19) == "1.5 MiB"
    assert format_storage_size(2.3e12) == "2.3 TB"
    assert format_bandwidth(47.7e6) == "47.7 MB/s"
    assert format_duration(35e-6) == "35 us"
    assert format_duration(3.09 * 3600) == "3.09 h"


def test_nearest_name() -> None:
    assert nearest("rign", ["ring", "tree"]) == "did you mean 'ring'? Known: ring, tree"
    assert "did you mean" not in nearest("zzz", ["ring", "tree"])
