"""``atoll compare``: placements and algorithms measured on an emulated cluster, beside the simulator's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from atoll.cli.emulate import announce, cluster_options, read_options
from atoll.errors import SpecError, nearest
from atoll.units import format_duration, format_size, parse_size

if TYPE_CHECKING:
    from atoll.emulator.comparison import Row
    from atoll.emulator.start import Started


@click.command(context_settings={"max_content_width": 110})
@cluster_options
@click.option("--algorithm", "algorithms", metavar="NAME[,NAME]", help="Of all ranks.  [default: ring,"
              "double_binary_tree,hierarchical,direct]")  # fmt: skip
@click.option("-b", "--minbytes", default="1M", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="16M", show_default=True, metavar="SIZE", help="Last size.")
@click.option("-f", "--stepfactor", type=click.IntRange(2), default=4, show_default=True, metavar="FACTOR",
              help="Each size FACTOR times the last.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the tables.")
def command(
    algorithms: str | None, minbytes: str, maxbytes: str, stepfactor: int, as_json: bool, **options: Any
) -> int:
    """Measure on an emulated cluster what the simulator predicts for it, and show both.

    \b
    atoll compare
    atoll compare --nodes 4 --ranks-per-node 2 -b 1M -e 64M
    atoll compare --nodes 4 --oversubscription 2 --algorithm ring,hierarchical

    All-reduce, twice: tensor parallelism in groups as large as a node, inside islands and across nodes; and all ranks
    together, by flat algorithms and by the hierarchical one. Every element of a first call is checked.

    Needs what `atoll emulate` needs. Exit status: 0 measured, 1 a wrong element or a process failed, 2 bad arguments or
    no rights, 130 after Ctrl-C (with the rows so far).
    """
    from atoll.emulator.layout import placements
    from atoll.emulator.namespaces import gain_rights
    from atoll.emulator.start import started

    layout, wish = read_options(options)
    placements(layout)  # refuses what cannot be compared
    sizes = _sizes(minbytes, maxbytes, stepfactor)
    # Ahead of what imports NumPy, whose threads would keep this process from entering a user namespace.
    gain_rights()
    names = _algorithms(algorithms)
    with started(layout, wish) as up:
        announce(up)
        return _Comparison(up, sizes, names, as_json).run()


def _sizes(first: str, last: str, factor: int) -> list[int]:
    low, high = parse_size(first, "-b"), parse_size(last, "-e")
    if not 4 <= low <= high:
        raise SpecError(f"-b {first} -e {last}: expected at least 4 bytes, and the first size to be at most the last")
    sizes = [low // 4 * 4]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return sizes


def _algorithms(text: str | None) -> list[str]:
    from atoll.algorithms.catalog import names
    from atoll.emulator.comparison import ALGORITHMS

    if text is None:
        return list(ALGORITHMS)
    known = names("all_reduce")
    chosen = [part.strip().replace("-", "_") for part in text.split(",")]
    for name in chosen:
        if name not in known:
            raise SpecError(f"--algorithm: unknown algorithm {name!r}: {nearest(name, known)}")
    if len(set(chosen)) != len(chosen):
        raise SpecError(f"--algorithm: named twice in {text!r}")
    return chosen


class _Comparison:
    """Measures, and prints the rows as they come."""

    def __init__(self, up: Started, sizes: Sequence[int], algorithms: Sequence[str], as_json: bool) -> None:
        self.up = up
        self.sizes = sizes
        self.algorithms = algorithms
        self.as_json = as_json
        self.latency_s = 0.0
        self.rows: list[Row] = []

    def run(self) -> int:
        import os

        from atoll.emulator.comparison import cases, compare

        wanted = cases(self.up.cluster.layout, self.sizes, self.algorithms)
        interrupted = False
        try:
            compare(self.up, wanted, dict(os.environ), self._latency, self._row)
        except KeyboardInterrupt:
            interrupted = True
        if self.as_json:
            self._document(complete=len(self.rows) == len(wanted))
        elif self.rows:
            self._conclude()
        wrong = sum(row.wrong for row in self.rows)
        if wrong:
            click.echo(f"atoll compare: {wrong} wrong elements", err=True)
        return 130 if interrupted else int(wrong > 0)

    def _latency(self, latency_s: float) -> None:
        self.latency_s = latency_s
        if not self.as_json:
            layout = self.up.cluster.layout
            click.echo(f"# all-reduce on {layout.describe()}; a message takes {format_duration(latency_s)} by itself")
            click.echo(f"# {'size':>8}  {'ranks':<14}  {'algorithm':<18}  {'simulated':>10}  {'measured':>10}  error")

    def _row(self, row: Row) -> None:
        self.rows.append(row)
        if not self.as_json:
            case = row.case
            click.echo(
                f"  {format_size(case.size_bytes):>8}  {case.name:<14}  {case.algorithm.replace('_', '-'):<18}  "
                f"{format_duration(row.simulated_s):>10}  {format_duration(row.measured_s):>10}  {row.error:+.1%}"
            )

    def _conclude(self) -> None:
        """What the two questions come to, at each size, and how far the simulator is off."""
        from atoll.emulator.comparison import errors, ratios

        click.echo("# times as long, simulated and measured")
        for ratio in ratios(self.rows):
            click.echo(
                f"  {format_size(ratio.size_bytes):>8}  {ratio.what:<52}  {ratio.simulated:>5.2f}  "
                f"{ratio.measured:>5.2f}"
            )
        found = errors(self.rows)
        click.echo(f"# error of {found.rows} predictions: median {found.median:.1%}, worst {found.worst:.1%}")

    def _document(self, complete: bool) -> None:
        import msgspec

        from atoll.emulator.comparison import errors, ratios

        up, layout = self.up, self.up.cluster.layout
        document = {
            "schema_version": 1, "complete": complete, "layout": layout, "rates_bytes_per_s": up.rates,
            "moved_bytes_per_s": up.moved_bytes_per_s, "latency_s": self.latency_s,
            "rows": [
                {
                    "ranks": row.case.name, "groups": row.case.groups, "algorithm": row.case.algorithm,
                    "size_bytes": row.case.size_bytes, "simulated_s": row.simulated_s, "measured_s": row.measured_s,
                    "times_s": row.times_s, "error": row.error, "wrong": row.wrong,
                }
                for row in self.rows
            ],
            "ratios": ratios(self.rows), "errors": errors(self.rows) if self.rows else None,
        }  # fmt: skip
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
