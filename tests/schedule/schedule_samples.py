"""Small schedules that the tests of the readings share, each written out from its textbook definition."""

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def ring_all_reduce(n: int) -> Schedule:
    """Reduce-scatter, then all-gather, around the ring: chunk c is complete at rank c - 1."""
    builder = ScheduleBuilder("all_reduce", n, chunks=n, name="ring")
    rank = np.arange(n)
    for step in range(n - 1):
        builder.reduce(step, rank, (rank + 1) % n, (rank - step) % n)
    for step in range(n - 1):
        builder.copy(n - 1 + step, rank, (rank + 1) % n, (rank + 1 - step) % n)
    return builder.build()


def ring_reduce_scatter(n: int) -> Schedule:
    builder = ScheduleBuilder("reduce_scatter", n, chunks=n, name="ring")
    rank = np.arange(n)
    for step in range(n - 1):
        builder.reduce(step, rank, (rank + 1) % n, (rank - step - 1) % n)
    return builder.build()


def ring_all_gather(n: int) -> Schedule:
    builder = ScheduleBuilder("all_gather", n, chunks=n, name="ring")
    rank = np.arange(n)
    for step in range(n - 1):
        builder.copy(step, rank, (rank + 1) % n, (rank - step) % n)
    return builder.build()


def recursive_doubling_all_reduce(log_n: int) -> Schedule:
    n = 2**log_n
    builder = ScheduleBuilder("all_reduce", n, chunks=1, name="recursive doubling")
    rank = np.arange(n)
    for step in range(log_n):
        builder.reduce(step, rank, rank ^ (1 << step), 0)
    return builder.build()


def halving_doubling_all_reduce(log_n: int) -> Schedule:
    n = 2**log_n
    builder = ScheduleBuilder("all_reduce", n, chunks=n, name="halving-doubling")
    rank = np.arange(n)
    for step in range(log_n):
        half = n >> (step + 1)
        peer = rank ^ half
        builder.reduce(step, rank, peer, peer & ~(half - 1), num_chunks=half)
    for step in range(log_n):
        half = 1 << step
        builder.copy(log_n + step, rank, rank ^ half, rank & ~(half - 1), num_chunks=half)
    return builder.build()


def one_shot_all_reduce(n: int, chunks: int = 1) -> Schedule:
    """Everyone sends everything to everyone: each rank adds the others' in an order of its own."""
    builder = ScheduleBuilder("all_reduce", n, chunks=chunks, name="one-shot")
    src, dst = np.divmod(np.arange(n * n), n)
    builder.reduce(0, src[src != dst], dst[src != dst], 0, num_chunks=chunks)
    return builder.build()


def direct_all_reduce(n: int) -> Schedule:
    """Two steps: chunk c of everyone to rank c, then from rank c to everyone."""
    builder = ScheduleBuilder("all_reduce", n, chunks=n, name="direct")
    src, dst = np.divmod(np.arange(n * n), n)
    src, dst = src[src != dst], dst[src != dst]
    builder.reduce(0, src, dst, dst)
    builder.copy(1, src, dst, src)
    return builder.build()


def chain_broadcast(n: int, chunks: int = 1) -> Schedule:
    builder = ScheduleBuilder("broadcast", n, chunks=chunks, root=0, name="chain")
    for step in range(n - 1):
        builder.copy(step, step, step + 1, 0, num_chunks=chunks)
    return builder.build()


def binomial_broadcast(n: int) -> Schedule:
    builder = ScheduleBuilder("broadcast", n, chunks=1, root=0, name="binomial")
    reached, step = 1, 0
    while reached < n:
        senders = np.arange(min(reached, n - reached))
        builder.copy(step, senders, senders + reached, 0)
        reached, step = 2 * reached, step + 1
    return builder.build()
