"""``nvidia-smi topo -m``: what lies between each pair of GPUs and NICs of one node.

Vocabulary. A *matrix* has one row and one column per *device* (``GPU0``, ``NIC3``, or ``mlx5_0`` in older drivers) and
after them per-row columns: CPU affinity, NUMA affinity, GPU NUMA ID. A *cell* says what a transfer crosses: ``X``
self, ``NV#`` a bond of # NVLinks, ``PIX`` one PCIe bridge, ``PXB`` several, ``PHB`` the host bridge, ``NODE`` host
bridges of one NUMA node, ``SYS`` (``SOC`` before 2018) the link between sockets; ``topo -p2p`` prints ``OK``,
``NS``, ``CNS``, ``GNS``, ``TNS``, ``DR``, ``U``. A *NIC legend* below maps ``NIC0`` to its HCA name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class MatrixDevice(msgspec.Struct, frozen=True):
    """One row. ``cells[j]`` is what lies between this device and ``TopologyMatrix.devices[j]``; ``None``: not printed.

    ``kind`` is ``"gpu"``, ``"nic"`` or ``"other"``; ``hca`` the adapter's name (``mlx5_3``) where a legend or the
    column itself gives it; affinities are as printed (``"0-63,128-191"``), empty when absent or ``N/A``.
    """

    name: str
    kind: str
    cells: tuple[str | None, ...]
    source: Source
    hca: str = ""
    cpu_affinity: str = ""
    numa_affinity: str = ""
    gpu_numa_id: str = ""


class TopologyMatrix(msgspec.Struct, frozen=True):
    """One node's matrix. ``host`` only where a prefix (pdsh, clush) names it; ``complete``: no cell is missing."""

    devices: tuple[MatrixDevice, ...]
    complete: bool
    source: Source
    host: str = ""

    def path(self, a: str, b: str) -> str | None:
        """The cell of row ``a`` and column ``b``, or of ``b`` and ``a`` where that is missing; ``None``: neither."""
        index = {device.name: at for at, device in enumerate(self.devices)}
        if a not in index or b not in index:
            return None
        return self.devices[index[a]].cells[index[b]] or self.devices[index[b]].cells[index[a]]

    def of_kind(self, kind: str) -> tuple[MatrixDevice, ...]:
        return tuple(device for device in self.devices if device.kind == kind)


def nvlinks(cell: str | None) -> int:
    """The NVLinks of a cell: 18 for ``NV18``, 0 for any other."""
    return int(cell[2:]) if cell is not None and cell.startswith("NV") and cell[2:].isdigit() else 0


MAX_DEVICES: Final = 1024

_TAIL_LABELS: Final = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_TAIL: Final = re.compile(r"(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_CELL: Final = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|OK|NS|CNS|GNS|TNS|DR|U|N/A|C2C|XBR")
_FIRST_COLUMN: Final = re.compile(r"GPU\d+")
_DEVICE: Final = re.compile(r"[A-Za-z][\w.:/-]{0,63}")
_HCA: Final = re.compile(r"(?:mlx|bnxt_re|irdma|efa|rdmap|rocep|ibp|hfi|qedr|cxgb|i40iw|hns|erdma|ionic)[\w.-]*")
_NIC_LEGEND: Final = re.compile(r"\s*(NIC\d{1,4})\s*:\s*(\S{1,64})\s*")
_MIG: Final = re.compile(r"\s*MIG\s.*?(?=\s(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|N/A)\s)")
_HOST: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):[ \t]")


class _Table:
    """A matrix being read: its column names, then its rows by name."""

    def __init__(self, columns: list[str], labels: list[str], host: str, source: Source) -> None:
        self.columns = columns
        self.labels = labels
        self.host = host
        self.source = source
        self.rows: dict[str, MatrixDevice] = {}
        self.legend: dict[str, str] = {}
        self.open = True


def read_topology_matrices(text: str | bytes, file: str, *, allow_partial: bool = False) -> tuple[TopologyMatrix, ...]:
    """Every matrix in ``text``, in order; several where ``clush`` or a loop over hosts put them into one file.

    Raises ``SpecError`` with file and line where there is no matrix, a cell has no known word, or, unless
    ``allow_partial``, a GPU's row is missing or cut. With ``allow_partial`` what is missing is ``None`` and
    ``complete`` is false. NIC rows may always be missing: the GPU rows hold their distances.
    """
    return matrices_in(text_lines(text), file, allow_partial=allow_partial)


def matrices_in(lines: Iterable[Line], file: str, *, allow_partial: bool = False) -> tuple[TopologyMatrix, ...]:
    """``read_topology_matrices`` of lines."""
    tables: list[_Table] = []
    for line in lines:
        text, host = line.text, line.launcher.host
        if match := _HOST.match(text):
            rest = text[match.end() :]
            if _header(rest) or (tables and tables[-1].host == match[1]):
                text, host = rest, match[1]
        header = _header(text)
        if header is not None:
            columns, labels = header
            if len(set(columns)) != len(columns) or len(columns) > MAX_DEVICES:
                raise SpecError(
                    f"{file}:{line.number}: a topology matrix with {len(columns)} columns of which "
                    f"{len(set(columns))} differ; expected at most {MAX_DEVICES} different devices"
                )
            tables.append(_Table(columns, labels, host, line.source(file)))
        elif tables:
            _feed(tables[-1], text, line, file, allow_partial)
    if not tables:
        raise SpecError(
            f"{file}: no topology matrix: expected the output of 'nvidia-smi topo -m', "
            "whose first line names the columns GPU0, GPU1, ..."
        )
    return tuple(_finish(table, file, allow_partial) for table in tables)


def _header(text: str) -> tuple[list[str], list[str]] | None:
    """Columns and tail labels of a header line; ``None`` if it is none."""
    tail = _TAIL.search(text)
    head = text[: tail.start()] if tail else text
    if "\t" in head.strip():
        columns = [field.strip() for field in head.split("\t") if field.strip()]
    else:
        columns = head.split()
    if not columns or _FIRST_COLUMN.match(columns[0]) is None:
        return None
    if len(columns) == 1 and tail is None:
        return None
    if not all(_DEVICE.match(column) and not _CELL.fullmatch(column) for column in columns):
        return None
    rest = text[tail.start() :] if tail else ""
    return columns, [label for label in _TAIL_LABELS if label in rest]


def _feed(table: _Table, text: str, line: Line, file: str, allow_partial: bool) -> None:
    legend = _NIC_LEGEND.fullmatch(text)
    if legend is not None:
        table.legend[legend[1]] = legend[2]
        return
    if not table.open:
        return
    stripped = text.strip()
    if not stripped:
        return
    migs = _MIG.match(text)
    name, rest = (migs[0].strip(), text[migs.end() :]) if migs else _split_name(stripped)
    tokens = rest.split()
    known = name in table.columns
    if not known and not (tokens and _CELL.fullmatch(tokens[0])):
        table.open = False
        return
    if not known:
        if allow_partial:
            return
        raise SpecError(f"{file}:{line.number}: a row named {name!r}, which is no column: {', '.join(table.columns)}")
    if name in table.rows:
        raise SpecError(
            f"{file}:{line.number}: a second row {name!r}; the first is line {table.rows[name].source.line}"
        )
    table.rows[name] = _row(table, name, tokens, line, file, allow_partial)


def _split_name(stripped: str) -> tuple[str, str]:
    name, _, rest = stripped.partition("\t") if "\t" in stripped else stripped.partition(" ")
    if " " in name and _FIRST_COLUMN.match(name):
        name, _, more = name.partition(" ")
        rest = more + "\t" + rest
    return name, rest


def _row(table: _Table, name: str, tokens: list[str], line: Line, file: str, allow_partial: bool) -> MatrixDevice:
    wanted = len(table.columns)
    cells: list[str | None] = []
    for token in tokens[:wanted]:
        if _CELL.fullmatch(token) is None:
            if allow_partial or len(cells) == 0:
                break
            raise SpecError(
                f"{file}:{line.number}: row {name}, column {table.columns[len(cells)]}: expected X, NV#, PIX, PXB, "
                f"PHB, NODE or SYS, got {token[:40]!r}"
            )
        cells.append(token)
    tail = tokens[len(cells) :]
    if len(cells) < wanted:
        if not allow_partial:
            raise SpecError(
                f"{file}:{line.number}: row {name} has {len(cells)} of {wanted} cells; the output is cut. "
                "Paste the whole output of 'nvidia-smi topo -m'"
            )
        cells += [None] * (wanted - len(cells))
    found = {label: "" if value == "N/A" else value for label, value in zip(table.labels, tail, strict=False)}
    return MatrixDevice(
        name, _kind(name), tuple(cells), line.source(file), _hca(name),
        found.get("CPU Affinity", ""), found.get("NUMA Affinity", ""), found.get("GPU NUMA ID", ""),
    )  # fmt: skip


def _kind(name: str) -> str:
    if name.startswith("GPU"):
        return "gpu"
    return "nic" if name.startswith("NIC") or _HCA.match(name) else "other"


def _hca(name: str) -> str:
    return name if _HCA.match(name) else ""


def _finish(table: _Table, file: str, allow_partial: bool) -> TopologyMatrix:
    devices = []
    for name in table.columns:
        device = table.rows.get(name)
        if device is None:
            if _kind(name) == "gpu" and not allow_partial:
                raise SpecError(
                    f"{file}:{table.source.line}: the row of {name} is missing: {len(table.rows)} of "
                    f"{len(table.columns)} rows. Paste the whole output of 'nvidia-smi topo -m'"
                )
            device = MatrixDevice(name, _kind(name), (None,) * len(table.columns), table.source, _hca(name))
        if name in table.legend:
            device = msgspec.structs.replace(device, hca=table.legend[name])
        devices.append(device)
    complete = all(cell is not None for device in devices for cell in device.cells)
    return TopologyMatrix(tuple(devices), complete, table.source, table.host)
