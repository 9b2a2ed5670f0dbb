"""Parallel groups: which ranks work together when a model is cut in several ways at once.

Vocabulary. An *axis* is one way to cut: *tp* tensor, *cp* context, *dp* data, *pp* pipeline parallelism, *ep* expert
parallelism. A *degree* is the number of parts along an axis. The *order* names axes from the fastest to the slowest
varying: in ``tp-cp-ep-dp-pp`` neighbouring ranks differ in their tp coordinate, the ranks farthest apart in pp. A
*group* is a set of ranks whose coordinates differ along its axes only; its ranks stand in the order of these.

Rules, as in Megatron-Core's ``parallel_state.py``:

- The world is tp x cp x dp x pp. Every order names each axis once; axes of degree 1 may be left out.
- Experts cut the same world anew: etp x ep x edp x pp, where *etp* is the tensor parallelism of an expert (tp unless
  said) and *edp*, its data parallelism, is what is left. ep takes the place of cp and dp: it must divide cp x dp x tp /
  etp. Both cuts must have the same pipeline groups.
- Gradients are summed over dp and cp together (``dp-cp``), those of experts over edp.

DeepSpeed's ``PipeModelDataParallelTopology`` (pipe, data, model) and torchtitan's mesh (pp, dp, cp, tp) number their
ranks as the default here does; Megatron's ``--use-tp-pp-dp-mapping`` is ``tp-cp-ep-pp-dp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from atoll.errors import SpecError, nearest
from atoll.topology.cluster import Integers

AXES: Final = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER: Final = "tp-cp-ep-dp-pp"
ORDERS: Final[Mapping[str, str]] = {
    "megatron": DEFAULT_ORDER,
    "deepspeed": DEFAULT_ORDER,
    "torchtitan": DEFAULT_ORDER,
    "megatron-tp-pp-dp": "tp-cp-ep-pp-dp",
}
"""Orders by the name of who uses them."""

KINDS: Final = ("tp", "cp", "dp", "dp-cp", "pp", "ep", "edp")
"""Groups by name: the axes they span; ``ep`` and ``edp`` are of the experts' cut."""

MAX_WORLD: Final = 1 << 20


class Parallelism(msgspec.Struct, frozen=True, dict=True):
    """Degrees and order; see the module's text. ``dp`` counts whole replicas: the world is tp x cp x dp x pp.

    ``order`` is axes joined by dashes, or a name of ``ORDERS``. ``etp`` 0 stands for tp. Raises ``SpecError`` with all
    that does not fit.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        mistakes = [
            f"{axis}: expected a degree of at least 1, got {degree}"
            for axis, degree in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("cp", self.cp), ("ep", self.ep))
            if degree < 1
        ]
        if self.etp < 0:
            mistakes.append(f"etp: expected at least 1, or 0 for tp's degree, got {self.etp}")
        mistakes += self._order_mistakes()
        if not mistakes:
            mistakes = self._expert_mistakes()
        if not mistakes and self.world_size > MAX_WORLD:
            mistakes.append(f"{self.world_size} ranks; at most {MAX_WORLD} are taken")
        if mistakes:
            raise SpecError("parallelism: " + "; ".join(mistakes))

    def _order_mistakes(self) -> list[str]:
        given = self._order_text.split("-")
        unknown = [axis for axis in given if axis not in AXES]
        if unknown:
            known = (*AXES, *ORDERS)
            return [f"order {self.order!r}: {axis!r} is no axis: {nearest(axis, known)}" for axis in unknown[:1]]
        twice = sorted({axis for axis in given if given.count(axis) > 1})
        mistakes = [f"order {self.order!r}: {', '.join(twice)} named twice"] if twice else []
        missing = [axis for axis in AXES if axis not in given and getattr(self, axis) > 1]
        if missing:
            mistakes.append(f"order {self.order!r}: {', '.join(missing)} has a degree above 1 and no place")
        return mistakes

    def _expert_mistakes(self) -> list[str]:
        if self.ep == 1 and self.expert_tp == self.tp:
            return []
        rest = self.tp * self.cp * self.dp
        if rest % (self.ep * self.expert_tp):
            return [
                f"ep {self.ep} x etp {self.expert_tp} = {self.ep * self.expert_tp} does not divide "
                f"tp {self.tp} x cp {self.cp} x dp {self.dp} = {rest}, the ranks of a pipeline stage"
            ]
        if not np.array_equal(_grouped(self._dense, ("pp",)), _grouped(self._expert, ("pp",))):
            return [
                f"order {self.order!r}: experts would have other pipeline groups than the rest; let pp be the last axis"
            ]
        return []

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        return self.etp or self.tp

    @property
    def edp(self) -> int:
        """Data parallelism of the experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tp)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes from the fastest to the slowest, those left out of the order last."""
        given = self._order_text.split("-")
        return (*given, *(axis for axis in AXES if axis not in given))

    @property
    def _order_text(self) -> str:
        return ORDERS.get(self.order, self.order)

    @property
    def _dense(self) -> tuple[tuple[str, int], ...]:
        return tuple((axis, 1 if axis == "ep" else getattr(self, axis)) for axis in self.axes)

    @property
    def _expert(self) -> tuple[tuple[str, int], ...]:
        degrees = {"tp": self.expert_tp, "cp": 1, "ep": self.ep, "dp": self.edp, "pp": self.pp}
        return tuple((axis, degrees[axis]) for axis in self.axes)

    def degree(self, kind: str) -> int:
        """Ranks of a group of one of ``KINDS``."""
        return int(self.groups(kind).shape[1])

    def groups(self, kind: str) -> Integers:
        """[groups, ranks] of one of ``KINDS``, in Megatron's order. Every rank is in exactly one. ``SpecError``."""
        if kind not in KINDS:
            raise SpecError(f"no groups are called {kind!r}: {nearest(kind, KINDS)}")
        if kind not in self._known:
            expert = kind in ("ep", "edp")
            axes = ("dp",) if kind == "edp" else tuple(kind.split("-"))
            self._known[kind] = _grouped(self._expert if expert else self._dense, axes)
        return self._known[kind]

    @cached_property
    def _known(self) -> dict[str, Integers]:
        return {}

    def coordinates(self, ranks: Integers | int) -> dict[str, Integers]:
        """The coordinate of ranks along tp, cp, dp and pp."""
        left = np.asarray(ranks, dtype=np.int64)
        if left.size and (left.min() < 0 or left.max() >= self.world_size):
            raise SpecError(f"expected ranks 0 to {self.world_size - 1}, got one outside")
        found = {}
        for axis, degree in self._dense:
            found[axis], left = left % degree, left // degree
        found.pop("ep")
        return found

    @property
    def kinds(self) -> tuple[str, ...]:
        """Groups of at least two ranks, each set of groups once: without cp ``dp-cp`` is ``dp``."""
        shown = [kind for kind in KINDS if self.degree(kind) > 1]
        if self.cp == 1 or self.dp == 1:
            shown = [kind for kind in shown if kind != "dp-cp"]
        if self.ep == 1 and self.expert_tp == self.tp:
            shown = [kind for kind in shown if kind != "edp"]
        return tuple(shown)

    def text(self) -> str:
        """``tp 8, pp 4, dp 16, order tp-dp-pp``: degrees above 1."""
        degrees = [
            f"{axis} {getattr(self, axis)}" for axis in ("tp", "cp", "pp", "dp", "ep") if getattr(self, axis) > 1
        ]
        if self.expert_tp != self.tp:
            degrees.append(f"etp {self.expert_tp}")
        order = "-".join(axis for axis in self.axes if getattr(self, axis) > 1)
        return ", ".join(degrees or ["one rank"]) + (f", order {order}" if "-" in order else "")


def _grouped(degrees: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> Integers:
    """Ranks [groups, ranks of a group]: the fastest axis is the fastest among groups and within them."""
    names = [axis for axis, _ in reversed(degrees)]
    sizes = [degree for _, degree in reversed(degrees)]
    ranks = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    outside = [at for at, axis in enumerate(names) if axis not in axes]
    inside = [at for at, axis in enumerate(names) if axis in axes]
    size = int(np.prod([sizes[at] for at in inside], dtype=np.int64))
    return np.ascontiguousarray(ranks.transpose([*outside, *inside]).reshape(-1, size))
