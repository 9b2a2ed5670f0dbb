"""Versions of lab 01's exercise as a learner may write them: the solution with one thing changed.

``VARIANTS`` maps a name to the changes (text of the solution, what stands there instead).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "labs" / "lab_01_ring_all_reduce"
BEGIN, END = "the exercise begins here\n", "the exercise ends here\n"

_SEND_STEP = "        outgoing = chunks[(rank - step - 1) % world_size]\n"
_ADD = "        mine += incoming\n"
_CALL = "exchange(right, outgoing, left, incoming, counter)"
_GATHER = f"        incoming = chunks[(rank - step - 1) % world_size]\n        {_CALL}\n"
_SPLIT = "    chunks = np.array_split(vector, world_size)  # views: writing to them writes to the vector\n"
_SELECT_BOTH = """        wants_read = [left] if received < len(into) else []
        wants_write = [right] if sent < len(out) else []
"""
_INTO = "        incoming = np.empty_like(mine)\n"
_LOOP = "    while sent < len(out) or received < len(into):\n"
_COUNT = "    counter.sent += sent\n"

VARIANTS: dict[str, list[tuple[str, str]]] = {
    "starter": [],
    "send all, then receive": [
        (_LOOP, "    right.setblocking(True)\n    right.sendall(out)\n    sent = len(out)\n" + _LOOP)
    ],
    "select to send all, then to receive": [
        (_SELECT_BOTH, _SELECT_BOTH.replace("if received < len(into)", "if sent == len(out)"))
    ],
    "receive all, then send": [
        (_LOOP, "    left.setblocking(True)\n    while received < len(into):\n"
                "        received += left.recv_into(into[received:])\n" + _LOOP)
    ],
    "no select": [(_LOOP, "    sent += right.send(out)\n    received += left.recv_into(into)\n" + _LOOP)],
    "one send, one receive": [("            sent += right.send(out[sent:])\n", "            right.send(out[sent:])\n"
                               "            sent = len(out)\n")],
    "off by one chunk": [(_SEND_STEP, _SEND_STEP.replace("step - 1", "step"))],
    "no all-gather": [(_GATHER, "        break\n")],
    "all-gather adds": [
        (
            _GATHER,
            "        incoming = np.empty_like(chunks[(rank - step - 1) % world_size])\n"
            f"        {_CALL}\n        chunks[(rank - step - 1) % world_size] += incoming\n",
        )
    ],
    "all-gather one step short": [(_GATHER, "        if step == 2:\n            break\n" + _GATHER)],
    "not in place": [(_ADD, "        mine = mine + incoming\n"), (_GATHER, "        break\n")],
    "returns the sum": [(_SPLIT, "    vector = vector.copy()\n" + _SPLIT)],
    "whole vectors": [
        (
            _SPLIT,
            "    total, outgoing = vector.copy(), vector.copy()\n"
            "    for _ in range(world_size - 1):\n"
            "        incoming = np.empty_like(vector)\n"
            f"        {_CALL}\n"
            "        total += incoming\n"
            "        outgoing = incoming\n"
            "    vector[:] = total\n"
            "    return\n" + _SPLIT,
        )
    ],
    "padded chunks": [
        (
            _SPLIT,
            "    padded = np.zeros(-(-len(vector) // world_size) * world_size, vector.dtype)\n"
            "    padded[: len(vector)] = vector\n"
            "    chunks = np.split(padded, world_size)\n",
        ),
        (_GATHER, _GATHER + "        vector[:] = padded[: len(vector)]\n"),
    ],
    "an extra exchange": [(_SPLIT, _SPLIT + f"    outgoing, incoming = chunks[0], chunks[0].copy()\n    {_CALL}\n")],
    "smaller chunks first": [
        (
            _SPLIT,
            "    sizes = [len(chunk) for chunk in np.array_split(vector, world_size)][::-1]\n"
            "    chunks = np.split(vector, np.cumsum(sizes)[:-1])\n",
        )
    ],
    "chunks of one size": [(_INTO, "        incoming = np.empty_like(chunks[0])\n")],
    "does not count": [(_COUNT, "")],
    "keeps a copy": [(_SPLIT, "    before = vector.copy()\n" + _SPLIT + "    del before\n")],
    "to the left": [
        (_CALL, "exchange(left, outgoing, right, incoming, counter)"),
        ("chunks[(rank - step - 1)", "chunks[(rank + step + 1)"),
        ("chunks[(rank - step - 2)", "chunks[(rank + step + 2)"),
        ("chunks[(rank - step)", "chunks[(rank + step)"),
    ],
    "in float32": [(_ADD, "        mine[:] = (mine.astype(np.float32) + incoming.astype(np.float32))"
                          ".astype(mine.dtype)\n")],
    "raises": [(_SEND_STEP, "        outgoing = chunks[rank + world_size]\n")],
    "dies": [(_SPLIT, _SPLIT + "    if rank == 1:\n        import os\n\n        os._exit(3)\n")],
    "never ends": [(_SPLIT, _SPLIT + "    while rank == 1:\n        pass\n")],
    "rank 0 does nothing": [(_SPLIT, _SPLIT + "    if rank == 0:\n        return\n")],
    "no guard": [('if __name__ == "__main__":\n    harness', "harness")],
    "no Python": [(_LOOP, "    while sent < len(out) or:\n")],
    "no ring": [("def ring_all_reduce(", "def ring("), ("harness.main(ring_all_reduce,", "harness.main(ring,")],
    # Right, though not letter for letter the solution: rank r completes chunk r + 1, as many textbooks have it.
    "turned": [
        ("chunks[(rank - step - 1)", "chunks[(rank - step + 1 - 1)"),
        ("chunks[(rank - step - 2)", "chunks[(rank - step + 1 - 2)"),
        ("chunks[(rank - step)", "chunks[(rank - step + 1)"),
    ],
}  # fmt: skip


def write_variant(name: str, folder: Path) -> Path:
    """The variant as a file in ``folder``; every change must find its place."""
    source = (LAB / ("starter.py" if name == "starter" else "solution.py")).read_text()
    for before, after in VARIANTS[name]:
        assert before in source, f"{name}: the solution no longer contains {before!r}"
        source = source.replace(before, after)
    path = folder / "mine.py"
    path.write_text(source)
    return path


def run_lab(*arguments: str | Path, folder: Path = LAB) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` in ``folder``."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(LAB)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
