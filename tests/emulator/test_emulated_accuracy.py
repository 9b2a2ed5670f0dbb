"""The simulator against what was measured on emulated clusters, as the project keeps it."""

import subprocess
import sys
from pathlib import Path

from documents import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "emulated.py"
sys.path.insert(0, str(SCRIPT.parent))

from emulated import FOLDER, read, score  # noqa: E402

from atoll.emulator.comparison import ALGORITHMS, errors  # noqa: E402
from atoll.emulator.layout import Layout  # noqa: E402


def test_predictions_are_as_near_as_they_are_said_to_be() -> None:
    documents = [read(path) for path in sorted(FOLDER.glob("*.json"))]
    assert [document.layout for document in documents] == [Layout(2, 2), Layout(4, 2)]
    rows = [row for document in documents for row in score(document)]
    for document in documents:
        found = {(row.algorithm, row.size_bytes) for row in document.rows}
        assert found == {(name, size << 20) for name in ALGORITHMS for size in (1, 4, 16, 64)}
    found = errors(rows)
    assert found.rows == 32
    assert found.median <= 0.10
    assert found.worst <= 0.25
    # What the handbook's chapter says.
    text = (REPOSITORY / "docs" / "handbook" / "emulated_cluster.md").read_text()
    assert f"the median error was {found.median:.0%}, the worst {found.worst:.0%}".replace("%", " %") in text


def test_the_script_reads_documents_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, FOLDER / "2x2.json"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].startswith("16 rows: median ")
    (tmp_path / "other.json").write_text("{}")
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not what atoll compare --json prints" in done.stderr
