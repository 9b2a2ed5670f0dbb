"""A calibration as a file that people can read, keep and send: TOML with its provenance, written and read back here.

    [factors]      what was fitted, over NCCL's own figure; what is not named is 1
    [[band]]       measured over predicted on the rows of the fit: rows, median, 10th and 90th percentile
    [[source]]     which file, collective, ranks and NCCL version the rows came from

Nothing in it is trusted: unknown keys, missing ones and numbers out of range are errors with their place.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

from atoll.errors import SpecError, nearest
from atoll.simulator.calibration import Calibration, Source
from atoll.simulator.nccl_time import Factors
from atoll.simulator.prediction import BAND_NAMES, Spread

FORMAT: Final = 1
MAX_BYTES: Final = 1 << 20
_FACTORS: Final = Factors.__struct_fields__


def write_calibration(calibration: Calibration) -> str:
    """The file's text."""
    lines = [
        "# How this cluster departs from the presets, fitted by `atoll calibrate`. Give it back with --calibration.",
        f"format = {FORMAT}",
        'model = "nccl"',
        f"name = {_text(calibration.name)}",
        f"cluster = {_text(calibration.cluster)}",
        f"made_with = {_text(calibration.made_with)}",
        "",
        "[factors]",
        *(f"{name} = {getattr(calibration.factors, name):.6g}" for name in calibration.fitted),
    ]
    for name, spread in zip(BAND_NAMES, calibration.spreads, strict=True):
        lines += [
            "", "[[band]]", f"sizes = {_text(name)}", f"rows = {spread.rows}", f"median = {spread.median:.6g}",
            f"low = {spread.low:.6g}", f"high = {spread.high:.6g}",
        ]  # fmt: skip
    for source in calibration.sources:
        lines += [
            "", "[[source]]", f"file = {_text(source.file)}", f"collective = {_text(source.collective)}",
            f"ranks = {source.ranks}", f"rows = {source.rows}", f"nccl_version = {_text(source.nccl_version)}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def read_calibration(data: bytes, file: str) -> Calibration:
    """The inverse. Raises ``SpecError`` with the file and what is wrong in it."""
    if len(data) > MAX_BYTES:
        raise SpecError(f"{file}: larger than {MAX_BYTES} bytes; a calibration is a page")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: no calibration: {error}; make one with atoll calibrate LOG --cluster X") from error
    _keys(document, {"format", "model", "name", "cluster", "made_with", "factors", "band", "source"}, file)
    if document.get("format") != FORMAT or document.get("model") != "nccl":
        raise SpecError(
            f"{file}: expected format = {FORMAT} and model = 'nccl', got {document.get('format')!r} and "
            f"{document.get('model')!r}; make it anew with atoll calibrate"
        )
    factors = _table(document, "factors", file)
    _keys(factors, set(_FACTORS), f"{file}: [factors]")
    values = {name: _number(factors, name, f"{file}: [factors]", 1e-3, 1e3) for name in factors}
    bands = document.get("band")
    if not isinstance(bands, list) or len(bands) != len(BAND_NAMES):
        raise SpecError(f"{file}: expected {len(BAND_NAMES)} [[band]] tables, {', '.join(BAND_NAMES)}")
    return Calibration(
        str(document.get("name", file)), str(document.get("cluster", "")), Factors(**values), tuple(values),
        tuple(_band(band, name, file) for band, name in zip(bands, BAND_NAMES, strict=True)),
        tuple(_source(source, file) for source in document.get("source", [])), str(document.get("made_with", "")),
    )  # fmt: skip


def _band(band: Any, name: str, file: str) -> Spread:
    where = f"{file}: [[band]] {name}"
    if not isinstance(band, dict) or band.get("sizes") != name:
        raise SpecError(f"{where}: expected sizes = {name!r} here")
    _keys(band, {"sizes", "rows", "median", "low", "high"}, where)
    rows = int(_number(band, "rows", where, 0, 1e9))
    median, low, high = (_number(band, key, where, 1e-6, 1e6) for key in ("median", "low", "high"))
    if low > high:
        raise SpecError(f"{where}: low {low:g} is above high {high:g}")
    return Spread(rows, median, low, high)


def _source(source: Any, file: str) -> Source:
    where = f"{file}: [[source]]"
    if not isinstance(source, dict):
        raise SpecError(f"{where}: expected tables")
    _keys(source, set(Source.__struct_fields__), where)
    return Source(
        str(source.get("file", "")), str(source.get("collective", "")), int(_number(source, "ranks", where, 0, 1e9)),
        int(_number(source, "rows", where, 0, 1e9)), str(source.get("nccl_version", "")),
    )  # fmt: skip


def _table(document: dict[str, Any], key: str, file: str) -> dict[str, Any]:
    table = document.get(key)
    if not isinstance(table, dict):
        raise SpecError(f"{file}: expected a table [{key}]")
    return table


def _keys(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise SpecError(f"{where}: unknown {key!r}: {nearest(key, known)}")


def _number(table: dict[str, Any], key: str, where: str, least: float, most: float) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise SpecError(f"{where}: {key}: expected a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def _text(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in escaped) + '"'
