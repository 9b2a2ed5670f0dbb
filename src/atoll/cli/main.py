"""The ``atoll`` command: finds the subcommand's module only when it is called, so that ``--help`` stays fast.

Every subcommand is a module of this room with a click command ``command``; none of them is imported before it is
asked for. Errors of Atoll's own taxonomy become one line on stderr and their exit status.
"""

from __future__ import annotations

import importlib
import sys

import click

from atoll import __version__
from atoll.errors import AtollError, InternalError, SpecError, nearest

# name -> (module, one line of help); the help stands here so that listing imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("atoll.cli.doctor", "Read the logs, dumps and topologies of a job and say what is wrong."),
    "lint": ("atoll.cli.lint", "Check variables, topology files and timeouts before the run."),
    "topology": ("atoll.cli.topology", "Show a cluster, check and compare nodes: links, NICs, rails, switches."),
    "algorithms": ("atoll.cli.algorithms", "List the algorithms: what each costs, asks for and promises."),
    "prove": ("atoll.cli.prove", "Prove a schedule, certify its order, count its bytes against the lower bounds."),
    "draw": ("atoll.cli.draw", "Draw a schedule as a space-time diagram, as text or SVG."),
    "explain": ("atoll.cli.explain", "Explain a term with worked numbers: busbw, alpha, all-reduce, ring, ..."),
    "place": ("atoll.cli.place", "Place ranks on GPUs: what each group crosses and costs, and what would be better."),
    "survive": ("atoll.cli.survive", "Plan for failures: checkpoint cadence, spares, goodput, and what each is worth."),
    "simulate": ("atoll.cli.simulate", "Play algorithms over a cluster in virtual time: busbw, links, critical path."),
    "predict": ("atoll.cli.predict", "What NCCL will choose on a cluster, why, how long it takes; what-ifs."),
    "calibrate": ("atoll.cli.calibrate", "Fit the NCCL model of a cluster to measured times; residuals by size."),
    "bench": ("atoll.cli.bench", "Measure a collective among real processes, in the columns of nccl-tests."),
    "emulate": ("atoll.cli.emulate", "Run a bench or a script on a cluster of network namespaces on this machine."),
    "tune": ("atoll.cli.tune", "Measure which algorithm is fastest here, and write the table that auto follows."),
    "compare": (
        "atoll.cli.compare",
        "Placements and algorithms measured on an emulated cluster, beside the simulator.",
    ),
    "chaos": ("atoll.cli.chaos", "Break ranks of a job at work, at random, and check every promise about failures."),
    "demo": ("atoll.cli.demo", "Failures shown with real processes: a hang, its culprit, and the job that goes on."),
    "launch": ("atoll.cli.launch", "Start N ranks of a script or command on this host."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise SpecError(f"unknown command {args[0]!r}: {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="atoll")
def main() -> None:
    """Collective communication: prove, count, draw, run, simulate and diagnose it."""


def entry_point() -> None:
    """Run the command line and turn errors into one line and an exit status."""
    try:
        status = main(prog_name="atoll", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("atoll: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "atoll"
        message = " ".join(error.format_message().split())
        click.echo(f"{where}: {message} See {where} --help", err=True)
        sys.exit(error.exit_code)
    except InternalError:
        raise
    except AtollError as error:
        click.echo(f"atoll: {error}", err=True)
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of our output has gone (`atoll ... | head`); say nothing and stop.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
