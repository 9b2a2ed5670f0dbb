"""``atoll launch``: N ranks of a script, a module or any command, on this host."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import click

from atoll.errors import SpecError
from atoll.units import parse_duration


class _AfterDashes(click.Command):
    """Tells a command after ``--`` from a script: click itself forgets the dashes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["as_command"] = False
        if "--" in args:
            # A word before the dashes is the script, and the dashes are one of its arguments.
            before, _, _ = self.make_parser(ctx).parse_args(args[: args.index("--")])
            words = before.get("words")
            ctx.meta["as_command"] = not (isinstance(words, tuple | list) and words)
        return super().parse_args(ctx, args)


@click.command(
    cls=_AfterDashes,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="-n N [OPTIONS]",
)
@click.option("-n", "--world", "world_size", type=int, required=True, metavar="N", help="How many ranks to start.")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does; options of launch come before.")
@click.option("-l", "--prefix/--no-prefix", default=False, help="Put [rank] in front of every line of output.")
@click.option(
    "--grace", default="5s", show_default=True, metavar="TIME",
    help="How long the others may run on after a rank has failed, until they are ended.",
)  # fmt: skip
@click.option(
    "--spares", type=int, default=0, metavar="K",
    help="Start K more ranks that wait in atoll.init until comm.grow() puts them in the place of lost ones.",
)  # fmt: skip
@click.option(
    "--tolerate", type=int, metavar="M",
    help="Let the job go on after up to M ranks have failed (default: as many as there are spares).",
)  # fmt: skip
@click.option(
    "--heartbeat-timeout", metavar="TIME",
    help="A rank that others wait for and that gives no sign of life for so long is given up (default: 5s).",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Show who is in which call and who comes late, live, on stderr.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT | -m MODULE | -- COMMAND] [ARGUMENTS]...")
@click.pass_context
def command(
    ctx: click.Context, world_size: int, module: bool, prefix: bool, grace: str, spares: int, tolerate: int | None,
    heartbeat_timeout: str | None, watch: bool, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Start N ranks on this host and wait for them.

    \b
    atoll launch -n 4 train.py --epochs 3      a Python script
    atoll launch -n 4 -m package.module        a module
    atoll launch -n 4 -- ./a.out --fast        any command

    Every rank finds its place in ATOLL_RANK, ATOLL_WORLD_SIZE, ATOLL_LOCAL_RANK, ATOLL_LOCAL_WORLD_SIZE,
    ATOLL_RENDEZVOUS and ATOLL_SECRET; atoll.init() reads them. A rank that sets ATOLL_HOST to another name counts as on
    another host, so that what is mixed (shared memory within, TCP between) can be tried on one. OMP_NUM_THREADS, unless
    it is set, becomes the number of cores divided by N (at least 1), since N ranks with a thread for every core would
    get in each other's way. PYTHONUNBUFFERED is set, so that output comes when it is printed. Ranks have no standard
    input.

    When a rank fails, the others are told by their communicators, and ended after the grace. The exit status is that of
    the rank that failed first (128 + n for signal n), and a summary on stderr names it. A program that goes on without
    lost ranks (comm.shrink(), comm.grow()) says so with --spares or --tolerate.
    """
    from atoll.runtime.launch import launch

    table = None
    if watch:
        from atoll.cli.watch_table import WatchTable

        live = sys.stderr.isatty()
        table = WatchTable(sys.stderr, live, shutil.get_terminal_size().columns if live else 120)
    environ = dict(os.environ)
    if heartbeat_timeout is not None:
        if not parse_duration(heartbeat_timeout, "--heartbeat-timeout") > 0:
            raise SpecError(f"--heartbeat-timeout: expected more than 0 seconds, got {heartbeat_timeout!r}")
        environ["ATOLL_HEARTBEAT_TIMEOUT"] = heartbeat_timeout
    result = launch(
        _command_line(module, list(words), ctx.meta["as_command"]),
        world_size,
        environ=environ,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
        prefix=prefix,
        grace_s=parse_duration(grace, "--grace"),
        entrance=ctx.obj or (),
        spares=spares,
        tolerate=tolerate,
        watch=table,
    )
    summary = result.summary()
    if summary:
        click.echo(f"atoll launch: {summary}", err=True)
    ctx.exit(result.exit_status)


def _command_line(module: bool, words: list[str], as_command: bool) -> list[str]:
    """What to run, or ``SpecError``."""
    if module and as_command:
        raise SpecError("-m names a module and -- a command: give one of them")
    if not words:
        raise SpecError("nothing to run: give a script, -m MODULE, or -- COMMAND")
    if module:
        if not _has_module(words[0]):
            raise SpecError(f"-m: there is no module {words[0]!r} here")
        return [sys.executable, "-m", *words]
    if as_command:
        if shutil.which(words[0]) is None:
            raise SpecError(f"there is no command {words[0]!r}")
        return words
    if not os.path.exists(words[0]):
        hint = f"; for the command of that name: atoll launch ... -- {words[0]}" if shutil.which(words[0]) else ""
        raise SpecError(f"there is no script {words[0]!r}{hint}")
    return [sys.executable, *words]


def _has_module(name: str) -> bool:
    """Whether Python finds the package of ``name`` from here, where the ranks run too; nothing of it is imported."""
    sys.path.insert(0, os.getcwd())
    try:
        return bool(name.strip(".")) and importlib.util.find_spec(name.partition(".")[0]) is not None
    finally:
        sys.path.pop(0)
