"""``atoll bench``: measure a collective among real processes, in the columns of nccl-tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from atoll.cli.schedule_source import collective_name
from atoll.errors import SpecError
from atoll.units import format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.runtime.benchmark import Result, Spec

MAX_SIZES = 1000


@click.command(context_settings={"max_content_width": 110})
@click.argument("collective", required=False)
@click.option("--collective", "collective_option", metavar="NAME", help="The same as the argument.")
@click.option("--world", "world_size", type=int, default=4, show_default=True, metavar="N", help="Processes to start.")
@click.option("--algorithm", "algorithms", metavar="NAME[,NAME]", help="One, or several side by side; auto chooses.")
@click.option("--transport", default="tcp", show_default=True, metavar="NAME",
              help="What carries the bytes: tcp, shm (shared memory), or auto.")  # fmt: skip
@click.option("-b", "--minbytes", default="1K", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="16M", show_default=True, metavar="SIZE", help="Last size.")
@click.option("-f", "--stepfactor", type=int, metavar="FACTOR", help="Each size FACTOR times the last.  [default: 4]")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Each size SIZE more than the last, instead.")
@click.option("-n", "--iters", type=int, default=20, show_default=True, metavar="N", help="Timed calls of each size.")
@click.option(
    "-w", "--warmup_iters", "warmup", type=int, default=1, show_default=True, metavar="N", help="Calls before."
)
@click.option("-c", "--check", type=int, default=1, show_default=True, metavar="0/1", help="Check every element.")
@click.option("-o", "--op", default="sum", show_default=True, metavar="OP", help="sum prod min max avg band bor bxor.")
@click.option(
    "-d", "--datatype", "dtype", default="float", show_default=True, metavar="TYPE", help="float, half, int32, ..."
)
@click.option("-r", "--root", type=int, default=0, show_default=True, metavar="RANK", help="For rooted collectives.")
@click.option("-a", "--average", type=click.IntRange(0, 3), default=1, show_default=True, metavar="0-3",
              help="Time of: rank 0, mean, fastest, slowest rank.")  # fmt: skip
@click.option("-T", "--timeout", default="60s", show_default=True, metavar="TIME", help="Until a call is given up.")
@click.option("-J", "--json-file", metavar="FILE", help="Write the JSON document there too.")
@click.option("--trace", "trace_file", metavar="FILE",
              help="Write when the messages of one call of each were on their way, for ui.perfetto.dev.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
@click.pass_context
def command(
    ctx: click.Context, collective: str | None, collective_option: str | None, world_size: int, algorithms: str | None,
    transport: str, minbytes: str, maxbytes: str, stepfactor: int | None, stepbytes: str | None, iters: int,
    warmup: int, check: int, op: str, dtype: str, root: int, average: int, timeout: str, json_file: str | None,
    trace_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a collective among N processes on this machine, check every element, and measure.

    \b
    atoll bench all-reduce --world 4
    atoll bench all-reduce --algorithm ring,halving_doubling,direct -b 8 -e 64M
    atoll bench all-gather -b 1M -e 1M -n 100 -d half --json

    The table has the columns of nccl-tests: size of the vector, time, algbw = size/time, busbw = algbw times what makes
    it comparable with a link's bandwidth (atoll explain busbw). Then, by rank, the bytes that the processes really
    passed to their sockets, or through shared memory, beside the schedule's count and the bandwidth bound. Sizes are
    binary: 1M is 1 MiB.

    Exit status: 0 all elements right, 1 some wrong or a process failed, 2 bad arguments, 130 after Ctrl-C (with the
    rows so far).
    """
    if collective is not None and collective_option is not None:
        raise SpecError(f"{collective} --collective {collective_option}: expected one of them")
    name = collective_name(collective or collective_option or "all-reduce")
    spec, step = _spec(name, world_size, algorithms, transport, (minbytes, maxbytes, stepfactor, stepbytes),
                       (iters, warmup, check, average), op, dtype, root, timeout, trace_file is not None)  # fmt: skip
    for option, path in (("-J", json_file), ("--trace", trace_file)):
        if path is not None:
            write_file(option, path, b"", "ab")  # a sweep is long: better to know now
    files = (json_file, trace_file)
    ctx.exit(_Run(spec, world_size, transport, step, files, as_json, ctx.obj or ()).run())


def _spec(
    collective: str, world_size: int, algorithms: str | None, transport: str,
    sizes: tuple[str, str, int | None, str | None], numbers: tuple[int, int, int, int], op: str, dtype: str, root: int,
    timeout: str, record: bool,
) -> tuple[Spec, str]:  # fmt: skip
    """The checked spec, and the step in nccl-tests' words. Everything is refused before a process is started."""
    from atoll.algorithms.catalog import default, find
    from atoll.report.bench_report import schedule_of
    from atoll.runtime.benchmark import Spec, dtype_named
    from atoll.runtime.join import MAX_WORLD_SIZE
    from atoll.runtime.reduction import reduction
    from atoll.runtime.transport import checked_transport
    from atoll.schedule.contract import COLLECTIVES

    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise SpecError(f"--world: expected 1 to {MAX_WORLD_SIZE} processes, got {world_size}")
    checked_transport(transport, "--transport")
    names = tuple(part.strip().replace("-", "_") for part in (algorithms or default(collective)).split(","))
    for name in names:
        if name != "auto":
            find(collective, name)
    if len(set(names)) != len(names):
        raise SpecError(f"--algorithm: named twice in {algorithms!r}")
    iters, warmup, check, average = numbers
    if check < 0:
        raise SpecError(f"-c: expected 0 or 1, got {check}")
    if iters < 1 or warmup < 0:
        raise SpecError(f"-n {iters} -w {warmup}: expected at least 1 timed and 0 warm-up calls")
    if COLLECTIVES[collective].rooted and not 0 <= root < world_size:
        raise SpecError(f"--root: expected a rank between 0 and {world_size - 1}, got {root}")
    element = dtype_named(dtype)
    if COLLECTIVES[collective].reduces and collective != "barrier":
        reduction(op, element)
    timeout_s = parse_duration(timeout, "--timeout")
    if timeout_s <= 0:
        raise SpecError(f"--timeout: expected more than 0, got {timeout!r}")
    swept, step = _sizes(*sizes)
    if collective == "barrier":
        swept = (1,)
    spec = Spec(collective, names, swept, str(element), op, root, iters, warmup, bool(check), average, timeout_s,
                transport, record)  # fmt: skip
    for name in names:
        schedule_of(spec, name, world_size, swept[-1])  # refuses what is not for this world
    return spec, step


def _sizes(minbytes: str, maxbytes: str, factor: int | None, increment: str | None) -> tuple[tuple[int, ...], str]:
    first, last = parse_size(minbytes, "-b"), parse_size(maxbytes, "-e")
    if first > last:
        raise SpecError(f"-b {minbytes} -e {maxbytes}: expected the first size to be at most the last")
    if factor is not None and increment is not None:
        raise SpecError("-f and -i: expected one of them")
    sizes = [first]
    if increment is not None:
        by = parse_size(increment, "-i")
        if by < 1:
            raise SpecError(f"-i: expected at least 1 byte, got {increment}")
        sizes = list(range(first, last + 1, by)[:MAX_SIZES])
        step = f"{by}(bytes)"
    else:
        factor = 4 if factor is None else factor
        if factor < 2:
            raise SpecError(f"-f: expected a factor of at least 2, got {factor}")
        while sizes[-1] and sizes[-1] * factor <= last:
            sizes.append(sizes[-1] * factor)
        step = f"{factor}(factor)"
    return tuple(sizes), step


class _Run:
    """Starts the ranks and prints what rank 0 says as it comes; ``write`` is where the launcher delivers it."""

    def __init__(
        self, spec: Spec, world_size: int, transport: str, step: str,
        files: tuple[str | None, str | None], as_json: bool, entrance: Sequence[str],
    ) -> None:  # fmt: skip
        self.spec = spec
        self.world_size = world_size
        self.transport = transport
        self.step = step
        self.json_file, self.trace_file = files
        self.as_json = as_json
        self.entrance = entrance
        self.results: list[Result] = []
        self.pending = b""

    def run(self) -> int:
        import os
        from datetime import UTC, datetime

        import msgspec

        from atoll import __version__
        from atoll.report.bench_report import document, preamble, wire_table
        from atoll.report.nccl_table import footer
        from atoll.runtime.launch import launch
        from atoll.runtime.transport import VARIABLE

        spec = self.spec
        if not self.as_json:
            click.echo("\n".join(preamble(spec, self.world_size, self.transport, self.step)))
            click.echo(self._header())
        started = datetime.now(UTC).isoformat(timespec="seconds")
        command_line = [sys.executable, "-m", "atoll.runtime.bench_rank", msgspec.json.encode(spec).decode()]
        ended = launch(
            command_line, self.world_size, environ={**os.environ, VARIABLE: self.transport}, stdout=self,  # type: ignore[arg-type]
            stderr=sys.stderr.buffer, entrance=self.entrance,
        )  # fmt: skip
        self._progress(done=True)
        wrong = sum(way.wrong or 0 for result in self.results for way in (result.out_of_place, result.in_place) if way)
        facts: dict[str, Any] = {
            "version": __version__, "start_time": started, "end_time": datetime.now(UTC).isoformat(timespec="seconds"),
            "args": sys.argv[1:], "config": msgspec.to_builtins(spec) | {"transport": self.transport},
            "complete": len(self.results) == len(spec.sizes_bytes) * len(spec.algorithms),
        }  # fmt: skip
        page = msgspec.json.format(msgspec.json.encode(document(spec, self.results, facts, self.world_size)))
        if self.as_json:
            click.echo(page.decode())
        elif len(spec.algorithms) == 1 or not self.results:
            click.echo(footer(self.results, self._factor()))
        if not self.as_json:
            for line in wire_table(spec, self.results, self.world_size):
                click.echo(line)
        if self.json_file is not None:
            write_file("-J", self.json_file, page + b"\n", "wb")
        if self.trace_file is not None:
            self._write_trace(self.trace_file)
        if ended.exit_status:
            click.echo(f"atoll bench: {ended.summary()}", err=True)
        if ended.signalled:
            return ended.exit_status
        return 1 if wrong or ended.exit_status else 0

    def write(self, text: bytes) -> int:
        """Output of the ranks: one result a line. What else a rank may say, a library's greeting, is talk."""
        import msgspec

        from atoll.runtime.bench_rank import Line

        self.pending += text
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            try:
                self.results.append(msgspec.json.decode(line, type=Line).result)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                click.echo(line.decode(errors="replace"), err=True)
            else:
                self._show()
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def _write_trace(self, path: str) -> None:
        from atoll.report.perfetto import perfetto
        from atoll.trace.events import one_after_the_other, unpack

        traces = [unpack(result.trace) for result in self.results if result.trace]
        if traces:
            write_file("--trace", path, perfetto(one_after_the_other(traces)), "wb")

    def _show(self) -> None:
        from atoll.report.bench_report import comparison_row
        from atoll.report.nccl_table import row

        self._progress()
        if self.as_json:
            return
        width = len(self.spec.algorithms)
        if width == 1:
            click.echo(row(self.results[-1], self._factor()))
        elif len(self.results) % width == 0:
            click.echo(comparison_row(self.results[-width:], self._factor()))

    def _header(self) -> str:
        from atoll.report.bench_report import comparison_header
        from atoll.report.nccl_table import HEADER

        return HEADER if len(self.spec.algorithms) == 1 else comparison_header(self.spec.algorithms)

    def _factor(self) -> float:
        from atoll.schedule.bus_bandwidth import busbw_factor

        return 1.0 if self.spec.collective == "barrier" else busbw_factor(self.spec.collective, self.world_size)

    def _progress(self, done: bool = False) -> None:
        """A line on a terminal's stderr that says what is being measured now."""
        if not sys.stderr.isatty():
            return
        click.echo("\r\x1b[K", nl=False, err=True)
        runs = [(size, name) for size in self.spec.sizes_bytes for name in self.spec.algorithms]
        if not done and len(self.results) < len(runs):
            size, name = runs[len(self.results)]
            click.echo(f"  {len(self.results)}/{len(runs)}: {format_size(size)}, {name} ...", nl=False, err=True)


def write_file(option: str, path: str, page: bytes, mode: str) -> None:
    """Raises ``SpecError`` that names the option."""
    try:
        with open(path, mode) as file:
            file.write(page)
    except OSError as error:
        raise SpecError(f"{option}: cannot write {path!r}: {error.strerror}") from None
