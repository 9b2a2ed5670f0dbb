"""Judge a version of the exercise: ``python check.py mine.py``.

Cases go from easy to hard, and the first one that fails is explained. ``groups_of`` is held to the library's groups,
``link_bytes`` to routes added up one by one, ``simulate`` to a slow simulator that moves one transfer after the other
over several clusters, schedules and placements; a wrong time is compared with what the usual mistakes give.

Exit status: 0 all cases pass, 1 one failed, 2 the file cannot be read or the arguments make no sense.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from clusters import one_nic, plain_tree

from atoll.algorithms.catalog import build
from atoll.planning.parallelism import Parallelism
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.topology.cluster import Cluster
from atoll.topology.names import link_name
from atoll.topology.presets import preset
from atoll.topology.routes import Routes, find_routes

Case = tuple[str, Callable[[Any], str | None]]
CLOSE = 1e-6


def cases() -> Iterator[Case]:
    for degrees, order in (
        ({"tp": 2, "dp": 3}, ("tp", "dp")),
        ({"tp": 2, "dp": 3}, ("dp", "tp")),
        ({"tp": 2, "dp": 3, "pp": 4}, ("tp", "dp", "pp")),
        ({"tp": 2, "dp": 3, "pp": 4}, ("pp", "tp", "dp")),
        ({"tp": 4, "dp": 1, "pp": 2}, ("dp", "pp", "tp")),
    ):
        for axis in degrees:
            name = f"groups_of: {axis} of {' x '.join(f'{a} {degrees[a]}' for a in order)}"
            yield name, lambda exercise, a=axis, d=degrees, o=order: judge_groups(exercise, a, d, o)
    yield "link_bytes: routes that share links, and one without any", judge_links
    dgx = preset("dgx-h100", 2)
    packed, across = np.arange(16).reshape(2, 8), np.arange(16).reshape(8, 2).T
    ring, tree = (prove(build("all_reduce", name, 8)) for name in ("ring", "binomial_tree"))
    hierarchical = prove(build("all_reduce", "hierarchical", 16, group_size=8))
    for what, cluster, proven, groups, size in (
        ("one group, a ring in its island", dgx, ring, packed[:1], 1e9),
        ("two groups at once, each in its island", dgx, ring, packed, 1e9),
        ("a ring of two nodes: rank order as dealt out", dgx, ring, across, 1e9),
        ("eight bytes: latency is what counts", dgx, ring, packed, 8),
        ("a tree: steps of different size", dgx, tree, packed, 1e8),
        ("hierarchical over two nodes", dgx, hierarchical, np.arange(16)[None], 1e9),
        ("groups that share one NIC", one_nic(2), ring, across, 1e9),
        ("chunks of different number and local moves", dgx, prove(build("all_to_all", "bruck", 8)), packed, 1e8),
        ("a slow way back: links have two directions", slow_way_back(), ring, packed[:1], 1e9),
        ("cables of an ECMP tree", plain_tree(4), prove(build("all_reduce", "direct", 8)),
         np.arange(32).reshape(8, 4).T, 1e9),
    ):  # fmt: skip
        yield (
            f"simulate: {what}",
            lambda exercise, c=cluster, p=proven, g=groups, s=size: judge_time(exercise, c, p, g, s),
        )


def slow_way_back() -> Cluster:
    """DGX H100 of which one link, from the switch to gpu3, has a fifth of its bandwidth."""
    import msgspec

    cluster = preset("dgx-h100", 2)
    route = find_routes(cluster, 2, 3)[0]
    return msgspec.structs.replace(cluster, shares=((int(route[-1]), 0.2),))


def judge_groups(exercise: Any, axis: str, degrees: dict[str, int], order: tuple[str, ...]) -> str | None:
    expected = Parallelism(**degrees, order="-".join(order)).groups(axis)
    got = np.asarray(exercise.groups_of(axis, degrees, order))
    if got.shape == expected.shape and (got == expected).all():
        return None
    if got.shape != expected.shape:
        turned = " That is the transpose: one row is one group." if got.shape == expected.T.shape else ""
        return f"expected an array of shape {expected.shape}, got {got.shape}.{turned}"
    if sorted(map(sorted, got.tolist())) == sorted(map(sorted, expected.tolist())):
        return f"the groups are right, their order is not: expected {expected.tolist()}, got {got.tolist()}"
    backwards = Parallelism(**degrees, order="-".join(reversed(order))).groups(axis)
    if (got == backwards).all():
        return f"that is the order {'-'.join(reversed(order))}: the first axis named is the fastest varying one"
    row = int(np.flatnonzero((got != expected).any(axis=1))[0])
    return f"group {row}: expected ranks {expected[row].tolist()}, got {got[row].tolist()}"


def judge_links(exercise: Any) -> str | None:
    routes = Routes(np.array([0, 2, 2, 5, 6]), np.array([4, 0, 4, 1, 3, 4]))
    sizes = np.array([10.0, 99.0, 5.0, 1.0])
    expected = [10.0, 5.0, 0.0, 5.0, 16.0, 0.0]
    got = np.asarray(exercise.link_bytes(routes, sizes, 6), dtype=float)
    if got.shape != (6,):
        return f"expected one figure for each of 6 links, got an array of shape {got.shape}"
    if np.allclose(got, expected):
        return None
    if got[4] in (10.0, 1.0):
        return (
            f"link 4 is used by transfers of 10, 5 and 1 bytes and carries 16, got {got[4]:g}: add up, do not replace"
        )
    return f"expected {expected}, got {got.tolist()}"


def judge_time(exercise: Any, cluster: Cluster, proven: ProvenSchedule, groups: np.ndarray, size: float) -> str | None:
    answer = exercise.simulate(cluster, proven, groups, size)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return f"expected seconds and the name of a link, got {answer!r}"
    seconds, link = float(answer[0]), answer[1]
    expected, busiest = slowly(cluster, proven, groups, size)
    if abs(seconds / expected - 1) > CLOSE:
        return explain(cluster, proven, groups, size, seconds, expected)
    if link not in busiest:
        return f"the time is right; busiest is {' or '.join(sorted(busiest)[:2])}, got {link}"
    return None


def slowly(
    cluster: Cluster, proven: ProvenSchedule, groups: np.ndarray, size: float, mistake: str = ""
) -> tuple[float, set[str]]:
    """One transfer after the other; ``mistake`` makes one on purpose. Seconds, and the names of the busiest links."""
    chunk = size / proven.schedule.header.chunks
    rate = cluster.bandwidth_bytes_per_s if mistake == "headline" else cluster.usable_bytes_per_s
    steps: dict[int, dict[int, float]] = {}
    latency: dict[int, float] = {}
    known: dict[tuple[int, int, int], tuple[float, list[int]]] = {}
    for row in proven.schedule.rows():
        if row.src == row.dst:
            continue
        busy = steps.setdefault(row.step, {})
        for group in groups[:1] if mistake == "one group" else groups:
            ends = (int(group[row.src]), int(group[row.dst]), row.channel)
            if ends not in known:
                routes = find_routes(cluster, *ends)
                known[ends] = float(routes.latency_s(cluster)[0]), routes[0].tolist()
            waits, links = known[ends]
            latency[row.step] = max(latency.get(row.step, 0.0), waits)
            for number in links:
                link = number // 2 * 2 if mistake == "one direction" else number
                moved = chunk if mistake == "num_chunks" else chunk * row.num_chunks
                seconds = moved / rate[number]
                busy[link] = (
                    max(busy.get(link, 0.0), seconds) if mistake == "not added" else busy.get(link, 0.0) + seconds
                )
    if mistake == "no latency":
        latency = {}
    total: dict[int, float] = {}
    for busy in steps.values():
        for link, seconds in busy.items():
            total[link] = total.get(link, 0.0) + seconds
    most = max(total.values())
    names = {link_name(cluster, link) for link, seconds in total.items() if seconds >= most * (1 - CLOSE)}
    if mistake == "all steps at once":
        return most + max(latency.values()), names
    return sum(max(busy.values()) for busy in steps.values()) + sum(latency.values()), names


MISTAKES = {
    "no latency": "the latency of the routes is missing: every step waits for the longest of them",
    "headline": "that is by headline bandwidths; what payload reaches is cluster.usable_bytes_per_s",
    "one group": "that is of the first group alone: all groups run at once and share links",
    "not added": "transfers that share a link in a step must share its bandwidth: their bytes add up",
    "one direction": "the two directions of a link carry bytes independently of each other: do not add them up",
    "num_chunks": "a row moves num_chunks chunks, not one",
    "all steps at once": "steps follow each other: add up the busiest link of each, not the bytes of all",
}


def explain(
    cluster: Cluster, proven: ProvenSchedule, groups: np.ndarray, size: float, got: float, expected: float
) -> str:
    told = f"expected {expected:.6g} s, got {got:.6g} s"
    for mistake, words in MISTAKES.items():
        wrong = slowly(cluster, proven, groups, size, mistake)[0]
        if abs(wrong / expected - 1) > CLOSE and abs(got / wrong - 1) <= CLOSE:
            return f"{told}. {words[0].upper()}{words[1:]}."
    return f"{told}, {got / expected:.4g} times as long"


def load(path: Path) -> Any:
    """The file as a module, without its main part. Raises ``ImportError`` with one line."""
    try:
        path.read_bytes()
        spec = importlib.util.spec_from_file_location("learners_exercise", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path.name} is no Python file: its name must end in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except OSError as error:
        raise ImportError(f"{path}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise ImportError(f"Python does not understand line {error.lineno} of {path.name}: {error.msg}") from None
    except SystemExit:
        raise ImportError(f"{path.name} ends the program when it is imported: keep its last two lines") from None
    missing = [name for name in ("groups_of", "link_bytes", "simulate") if not callable(getattr(module, name, None))]
    if missing:
        raise ImportError(f"{path.name} does not define {', '.join(missing)}: start from a copy of starter.py")
    return module


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        exercise = load(Path(arguments[0]))
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    passed = 0
    for name, judge in cases():
        try:
            wrong = judge(exercise)
        except NotImplementedError as error:
            wrong = str(error)
        except Exception as error:  # whatever the learner's code raises is told, not shown as our traceback
            line = _line_of(error, arguments[0])
            wrong = f"{type(error).__name__}: {error}{line}"
        if wrong is not None:
            print(f"FAIL  {name}\n\n{wrong}")
            return 1
        print(f"ok    {name}")
        passed += 1
    print(f"\nAll {passed} cases pass.")
    return 0


def _line_of(error: BaseException, file: str) -> str:
    """The innermost line of the learner's file in a traceback."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if Path(code.co_filename).name == Path(file).name:
            found = f" (line {trace.tb_lineno} in {code.co_name})"
        trace = trace.tb_next
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
