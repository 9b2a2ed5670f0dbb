"""``atoll tune``: measure which algorithm is fastest on this machine, and write the tuning file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from atoll.cli.schedule_source import collective_name
from atoll.errors import SpecError
from atoll.units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.runtime.tune import Timing, TuneSpec
    from atoll.runtime.tuning import Table

SCHEMA_VERSION = 1
MAX_SIZES = 64


@click.command(context_settings={"max_content_width": 100})
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@click.option("--world", "worlds", default="2,4,8", show_default=True, metavar="N[,N]", help="Numbers of ranks.")
@click.option("--transport", "transports", default="tcp,shm", show_default=True, metavar="NAME[,NAME]",
              help="tcp, shm or both.")  # fmt: skip
@click.option("-b", "--minbytes", default="64", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="64M", show_default=True, metavar="SIZE", help="Last size.")
@click.option(
    "-f", "--stepfactor", default=4, show_default=True, metavar="FACTOR", help="Each size FACTOR times the last."
)
@click.option("--turn", default="20ms", show_default=True, metavar="TIME",
              help="How long each of the turns of an algorithm lasts, at least one call.")  # fmt: skip
@click.option("-o", "--output", default="atoll-tuning.toml", show_default=True, metavar="FILE", help="What to write.")
@click.option("--from", "base", metavar="FILE",
              help="A tuning file whose tables stay where nothing is measured anew.  [default: none stay]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, collectives: tuple[str, ...], worlds: str, transports: str, minbytes: str, maxbytes: str,
    stepfactor: int, turn: str, output: str, base: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure every algorithm of every COLLECTIVE (all of them, unless named) in turns, size by size, and write down
    which is fastest.

    \b
    atoll tune                                       this machine, minutes
    atoll tune all-reduce --world 4 --transport shm  one table
    ATOLL_TUNING=atoll-tuning.toml atoll launch ...  use it

    auto then takes the measured winner; atoll explain all-reduce --size 1M --world 4 --tuning FILE shows why. Other
    programs that run meanwhile are measured too. Ctrl-C keeps what is complete.
    """
    from pathlib import Path

    from atoll.runtime.tuning import load_tuning
    from atoll.schedule.contract import COLLECTIVES

    names = tuple(dict.fromkeys(collective_name(name) for name in collectives)) or tuple(COLLECTIVES)
    spec = _spec(names, minbytes, maxbytes, stepfactor, turn)
    world_sizes = tuple(dict.fromkeys(_world(text) for text in worlds.split(",")))
    kinds = tuple(dict.fromkeys(name.strip() for name in transports.split(",")))
    for kind in kinds:
        if kind not in ("tcp", "shm"):
            raise SpecError(f"--transport: expected tcp, shm or both, got {kind!r}")
    kept = load_tuning(base).tables if base is not None else ()
    path = Path(output)
    if not path.parent.is_dir():
        raise SpecError(f"-o: there is no folder {str(path.parent)!r}")
    ctx.exit(_Run(spec, as_json).run(world_sizes, kinds, kept, path))


def _spec(names: tuple[str, ...], minbytes: str, maxbytes: str, factor: int, turn: str) -> TuneSpec:
    from atoll.runtime.tune import TuneSpec

    first, last = parse_size(minbytes, "-b"), parse_size(maxbytes, "-e")
    if not 4 <= first <= last:
        raise SpecError(f"-b {minbytes} -e {maxbytes}: expected at least 4 bytes, and the first size at most the last")
    if factor < 2:
        raise SpecError(f"-f: expected a factor of at least 2, got {factor}")
    sizes = [first]
    while sizes[-1] * factor <= last and len(sizes) < MAX_SIZES:
        sizes.append(sizes[-1] * factor)
    turn_s = parse_duration(turn, "--turn")
    if turn_s <= 0:
        raise SpecError(f"--turn: expected more than 0, got {turn!r}")
    return TuneSpec(names, tuple(sizes), turn_s)


def _world(text: str) -> int:
    if not text.strip().isdigit() or not 2 <= int(text) <= 256:
        raise SpecError(f"--world: expected numbers from 2 to 256, such as 2,4,8, got {text!r}")
    return int(text)


class _Run:
    """Starts one world after the other; ``write`` is where the launcher delivers what rank 0 says."""

    def __init__(self, spec: TuneSpec, as_json: bool) -> None:
        self.spec = spec
        self.as_json = as_json
        self.where = ""
        self.pending = b""
        self.timings: list[Timing] = []

    def run(self, worlds: tuple[int, ...], transports: tuple[str, ...], kept: tuple[Table, ...], path: Path) -> int:
        import os

        import msgspec

        from atoll.runtime.launch import launch
        from atoll.runtime.tune import by_collective, table_of
        from atoll.runtime.tuning import Tuning, format_tuning

        tables: list[Table] = []
        status = 0
        for transport in transports:
            for world_size in worlds:
                self.timings, self.pending, self.where = [], b"", f"{transport}, {world_size} ranks"
                ended = launch(
                    [sys.executable, "-m", "atoll.runtime.tune_rank", msgspec.json.encode(self.spec).decode()],
                    world_size, environ={**os.environ, "ATOLL_TRANSPORT": transport},
                    stdout=self, stderr=sys.stderr.buffer,  # type: ignore[arg-type]
                )  # fmt: skip
                self._progress("")
                groups = by_collective(self.timings)
                if ended.exit_status:
                    click.echo(f"atoll tune: {ended.summary()}", err=True)
                    groups = groups[:-1]  # of the last collective not every size may be there
                    status = ended.exit_status
                new = [table_of(group, transport, world_size) for group in groups]
                tables += new
                if not self.as_json:
                    for table in new:
                        click.echo(_line(table))
                if status:
                    break
            if status:
                break
        anew = {(table.collective, table.transport, table.world_size) for table in tables}
        tables += [t for t in kept if (t.collective, t.transport, t.world_size) not in anew]
        if tables:
            tuning = Tuning(tuple(tables), _origin())
            try:
                path.write_text(format_tuning(tuning), encoding="utf-8")
            except OSError as error:
                raise SpecError(f"-o: cannot write {str(path)!r}: {error.strerror}") from None
            click.echo(f"written to {path}; ATOLL_TUNING={path} uses it", err=True)
        if self.as_json:
            document = {"schema_version": SCHEMA_VERSION, "file": str(path) if tables else None,
                        "complete": not status, "tables": [_document(table) for table in tables]}  # fmt: skip
            click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return status

    def write(self, text: bytes) -> int:
        """Output of the ranks: one timing a line. What else a rank may say is talk."""
        import msgspec

        from atoll.runtime.tune_rank import Line

        self.pending += text
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            try:
                timing = msgspec.json.decode(line, type=Line).timing
            except (msgspec.MsgspecError, UnicodeDecodeError):
                click.echo(line.decode(errors="replace"), err=True)
                continue
            self.timings.append(timing)
            best = min(timing.seconds, key=lambda name: timing.seconds[name])
            self._progress(
                f"{self.where}: {timing.collective} {format_size(timing.size_bytes)}: {best}, "
                f"{format_duration(timing.seconds[best])}"
            )
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def _progress(self, text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _line(table: Table) -> str:
    from atoll.units import format_size_argument

    rules = ", ".join(f"{format_size_argument(start)} {name}" for start, name in table.rules["any"])
    return f"{table.transport} {table.world_size:>3}  {table.collective:<14}  {rules}"


def _origin() -> dict[str, str]:
    import os
    import platform
    from datetime import UTC, datetime

    cores = len(os.sched_getaffinity(0))
    return {
        "machine": f"{platform.machine()}, {cores} core{'s' if cores != 1 else ''}, Linux {platform.release()}",
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["atoll", *sys.argv[1:]]),
    }


def _document(table: Table) -> dict[str, Any]:
    import math

    link = None
    if table.fit is not None:
        rate = table.fit.link.reduce_bytes_per_s
        link = {
            "latency_s": table.fit.link.latency_s,
            "bandwidth_bytes_per_s": table.fit.link.bandwidth_bytes_per_s,
            "reduce_bytes_per_s": rate if math.isfinite(rate) else None,
            "off": table.fit.off,
        }
    return {
        "collective": table.collective,
        "transport": table.transport,
        "world_size": table.world_size,
        "rules": {order: [list(rule) for rule in rules] for order, rules in table.rules.items()},
        "sizes_bytes": list(table.sizes_bytes),
        "measured_s": {name: list(times) for name, times in table.measured.items()},
        "link": link,
    }
