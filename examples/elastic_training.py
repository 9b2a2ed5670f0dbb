"""Data-parallel training that goes on while its ranks are killed and stopped.

    python examples/elastic_training.py                       4 ranks, 1 spare, 2 faults
    python examples/elastic_training.py --faults 3 --seed 7   others; the seed decides when and whom

A linear model is fitted by gradient descent with momentum. Its best loss is known (least squares), so the result can be
judged, whatever happened on the way. Every step each rank computes the gradient of its part of the data and all sum
them. When a rank dies or falls silent, the others raise an error, ``grow`` puts a spare in its place (or goes on with
fewer when there is none), and all restore the last checkpoint: at most the steps since then are done again.

The file is its own launcher: without a rank in the environment it starts ``atoll launch`` with itself.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile

import numpy as np

import atoll

EXAMPLES, FEATURES = 4096, 32
RATE, MOMENTUM = 0.3, 0.6
SAVE_EVERY = 5


def data() -> tuple[np.ndarray, np.ndarray]:
    """The same on every rank: inputs, and targets with some noise."""
    random_numbers = np.random.default_rng(0)
    inputs = random_numbers.standard_normal((EXAMPLES, FEATURES))
    targets = inputs @ random_numbers.standard_normal(FEATURES) + random_numbers.standard_normal(EXAMPLES)
    return inputs, targets


def loss_of(weights: np.ndarray) -> float:
    """Mean squared error on all the data."""
    inputs, targets = data()
    return float(np.mean((inputs @ weights - targets) ** 2))


def best_loss() -> float:
    """What no linear model can go below."""
    inputs, targets = data()
    return loss_of(np.linalg.lstsq(inputs, targets, rcond=None)[0])


def planned_fault(seed: int, faults: int, ranks: int, steps: int) -> dict[int, tuple[int, signal.Signals]]:
    """By the rank that each process was started as: at which step it breaks, and how."""
    chance = random.Random(seed)
    victims = chance.sample(range(ranks), faults)
    when = sorted(chance.sample(range(SAVE_EVERY, steps), faults))
    kinds = (chance.choice((signal.SIGKILL, signal.SIGSTOP)) for _ in victims)
    return dict(zip(victims, zip(when, kinds, strict=True), strict=True))


def train(comm: atoll.Communicator, options: argparse.Namespace) -> np.ndarray:
    """From the last checkpoint, if there is one, to the end; raises what the collectives raise."""
    inputs, targets = (np.array_split(whole, comm.world_size)[comm.rank] for whole in data())
    weights, velocity, first = np.zeros(FEATURES), np.zeros(FEATURES), 0
    started_as = int(os.environ["ATOLL_RANK"])
    breaks_at, how = planned_fault(options.seed, options.faults, options.ranks, options.steps).get(
        started_as, (-1, signal.SIGKILL)
    )
    with atoll.Checkpointer(options.checkpoints, comm, keep_last=2) as checkpointer:
        restored = checkpointer.restore()
        if restored is not None:
            weights, velocity = restored.arrays["weights"], restored.arrays["velocity"]
            first = restored.step + 1
        if comm.rank == 0:
            print(f"{comm.world_size} ranks work from step {first} on", flush=True)
        for step in range(first, options.steps):
            if step == breaks_at:
                print(f"step {step}: the process that began as rank {started_as} gets {how.name}", flush=True)
                os.kill(os.getpid(), how)
            gradient = 2 * inputs.T @ (inputs @ weights - targets) / EXAMPLES
            velocity = MOMENTUM * velocity - RATE * comm.all_reduce(gradient)
            weights = weights + velocity
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                checkpointer.save(step, {"weights": weights, "velocity": velocity})
    return weights


def work(options: argparse.Namespace) -> None:
    """What each rank does."""
    comm = atoll.init()
    while True:
        try:
            weights = train(comm, options)
            break
        except (atoll.PeerLost, atoll.CollectiveTimeout) as error:
            lost = comm.agree().lost  # the same on all that are left; a rank that was given up raises here
            if comm.rank == min(rank for rank in range(comm.world_size) if rank not in lost):
                print(str(error).splitlines()[0], flush=True)
            comm = comm.grow()
    if comm.rank == 0:
        loss, best = loss_of(weights), best_loss()
        print(f"after {options.steps} steps: loss {loss:.6f}, the best possible is {best:.6f}")
    comm.barrier()
    comm.close()


def main() -> int:
    """Be a rank, or start them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="how many work (4)")
    parser.add_argument("--spares", type=int, default=1, help="how many wait (1)")
    parser.add_argument("--faults", type=int, default=2, help="how many break, fewer than ranks (2)")
    parser.add_argument("--seed", type=int, default=2, help="decides which, when and how (2)")
    parser.add_argument("--steps", type=int, default=60, help="steps of training (60)")
    parser.add_argument("--checkpoints", help="folder; a new one that is deleted at the end by default")
    options = parser.parse_args()
    if not 0 <= options.faults < options.ranks - 1 or options.steps < SAVE_EVERY + options.faults:
        parser.error("expected fewer faults than ranks - 1, and more steps than that")
    if "ATOLL_RANK" in os.environ:
        work(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "atoll", "launch", "-n", str(options.ranks), "--spares", str(options.spares),
            "--tolerate", str(options.faults), "--heartbeat-timeout", "4s", "--grace", "1s", __file__,
            "--checkpoints", options.checkpoints or folder,
        ]  # fmt: skip
        for name in ("ranks", "spares", "faults", "seed", "steps"):
            command += [f"--{name}", str(getattr(options, name))]
        return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main())
