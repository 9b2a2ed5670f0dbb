"""``atoll emulate``: a bench or a script on a cluster of network namespaces, with links that are as slow as they should
be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atoll.errors import SpecError, nearest
from atoll.units import format_bandwidth, parse_bandwidth

if TYPE_CHECKING:
    from atoll.emulator.layout import Layout
    from atoll.emulator.start import Started, Wish

COMMANDS = ("bench", "launch")


def cluster_options(command: Any) -> Any:
    """The options that describe an emulated cluster."""
    for option in reversed(
        (
            click.option("--nodes", type=int, default=2, show_default=True, metavar="N", help="How many nodes."),
            click.option(
                "--ranks-per-node", type=int, default=2, show_default=True, metavar="N", help="Ranks of each node."
            ),
            click.option("--nics-per-node", type=int, default=0, metavar="N", help="[default: one for each rank]"),
            click.option(
                "--ratio",
                type=float,
                default=9.0,
                show_default=True,
                metavar="R",
                help="Island to network bandwidth, per direction, of one link each.",
            ),
            click.option("--island-bandwidth", metavar="RATE", help="Of a rank's island link.  [default: measured]"),
            click.option("--network-bandwidth", metavar="RATE", help="Of a NIC.  [default: measured]"),
            click.option(
                "--nodes-per-leaf", type=int, default=0, metavar="N", help="Leaves under a spine.  [default: one leaf]"
            ),
            click.option(
                "--oversubscription",
                type=float,
                default=1.0,
                show_default=True,
                metavar="R",
                help="What a leaf's NICs may send over what its uplink carries.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command(
    context_settings={"allow_interspersed_args": False, "max_content_width": 110},
    options_metavar="[OPTIONS] --",
)
@cluster_options
@click.option(
    "--save-cluster", metavar="FILE", help="Write the cluster there, as --cluster of other commands reads it."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="bench|launch [ARGUMENTS]...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], save_cluster: str | None, **options: Any) -> None:
    """Run a bench or a script on a cluster emulated on this machine.

    \b
    atoll emulate --nodes 2 --ranks-per-node 2 -- bench all-reduce --algorithm ring,hierarchical
    atoll emulate --nodes 4 --nodes-per-leaf 2 --oversubscription 2 -- bench all-to-all -b 1M -e 4M
    atoll emulate --ranks-per-node 4 -- launch train.py --epochs 3

    Every rank is a real process with real sockets in a network namespace of its own. Links are veth pairs with token
    buckets: fast inside an island (a node), slow between nodes. Unless they are given, bandwidths are chosen from what
    this machine moves at the start, so that the links are what limits, and not the processors.

    Needs root or user namespaces. Nothing outside of the new namespaces is touched, and they are gone when this ends,
    however it ends.
    """
    words = words[1:] if words[:1] == ("--",) else words
    if not words:
        raise SpecError(f"nothing to run: expected {' or '.join(COMMANDS)} and its arguments after --")
    if words[0] not in COMMANDS:
        raise SpecError(
            f"unknown command {words[0]!r}: {nearest(words[0], COMMANDS)}; for a program: -- launch -- PROGRAM"
        )
    from atoll.emulator.start import started

    layout, wish = read_options(options)
    # Ahead of the cluster, so that mistakes in what is to be run come first; and without NumPy, whose threads would
    # keep this process from entering a user namespace.
    inner, context = _prepare(words[0], list(words[1:]), layout.world_size)
    with started(layout, wish) as up:
        announce(up)
        _note_islands(context.params.get("algorithms") or "", layout)
        if save_cluster is not None:
            _save(up, save_cluster)
        with context:
            context.obj = up.cluster.entrance
            inner.invoke(context)


def read_options(options: dict[str, Any]) -> tuple[Layout, Wish]:
    """From the options of ``cluster_options``."""
    from atoll.emulator.layout import Layout
    from atoll.emulator.start import Wish

    per_leaf = options["nodes_per_leaf"] or (1 if options["oversubscription"] > 1 else 0)
    layout = Layout(
        options["nodes"], options["ranks_per_node"], options["nics_per_node"], per_leaf, options["oversubscription"]
    )  # fmt: skip
    island, network = (
        None if options[name] is None else parse_bandwidth(options[name], f"--{name.replace('_', '-')}")
        for name in ("island_bandwidth", "network_bandwidth")
    )
    return layout, Wish(island, network, options["ratio"])


def announce(up: Started) -> None:
    """Say on stderr what is emulated."""
    layout, rates = up.cluster.layout, up.rates
    for leftover in up.ended:
        click.echo(f"atoll: ended process {leftover.pid}, left over from {leftover.mark}", err=True)
    links = f"{format_bandwidth(rates.island)} a rank in the island"
    if layout.nodes > 1:
        links += f", {format_bandwidth(rates.network)} a NIC in the network"
    if layout.has_spine:
        links += f", {format_bandwidth(rates.uplink(layout))} a leaf to the spine"
    click.echo(
        f"atoll: emulating {layout.describe()}; {links}, per direction. All links together: "
        f"{up.wanted_share:.0%} of the {format_bandwidth(up.moved_bytes_per_s)} that this machine moved",
        err=True,
    )
    if up.wanted_share > 0.5:
        click.echo("atoll: that is more than half: expect to measure the processors, not the links", err=True)


def _prepare(name: str, words: list[str], world_size: int) -> tuple[click.Command, click.Context]:
    """The command as if it had been called itself, with the cluster's size and TCP for defaults."""
    from atoll.cli import bench, launch

    defaults = {"world_size": world_size, "transport": "tcp"}
    inner = bench.command if name == "bench" else launch.command
    context = inner.make_context(f"atoll {name}", words, default_map=defaults)
    for option, wanted in defaults.items():
        got = context.params.get(option, wanted)
        if got != wanted:
            raise SpecError(
                f"{name}: {'' if option == 'transport' else 'a world of '}{got} is asked for, "
                f"the emulated cluster has {wanted}; leave it out"
            )
    return inner, context


def _note_islands(algorithms: str, layout: Layout) -> None:
    """A hierarchical algorithm that is asked for by name does not know where the nodes end."""
    from atoll.algorithms.hierarchical import default_group_size

    taken = default_group_size(layout.world_size)
    if "hierarchical" in algorithms.split(",") and taken != layout.ranks_per_node:
        click.echo(
            f"atoll: hierarchical takes islands of {taken} of {layout.world_size} ranks, the nodes here have "
            f"{layout.ranks_per_node}; atoll compare gives it the nodes",
            err=True,
        )


def _save(up: Started, path: str) -> None:
    from atoll.emulator.model import cluster_of
    from atoll.topology.spec_write import write_cluster

    try:
        with open(path, "w") as file:
            file.write(write_cluster(cluster_of(up.cluster.layout, up.rates)))
    except OSError as error:
        raise SpecError(f"--save-cluster: cannot write {path!r}: {error.strerror}") from None
