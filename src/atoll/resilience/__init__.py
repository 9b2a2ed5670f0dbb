"""Resilience: on paper, what failures cost a synchronous job and what each defence is worth; and checkpoints for real.

Read in this order: ``rates`` (how often it breaks), ``cadence`` (how often to checkpoint), ``goodput`` (what is left,
by formula), ``spares`` (how many nodes to hold ready), ``policies`` (wait, swap or shrink), ``montecarlo`` (the same by
simulation, as a check and for the spread), ``plan`` (all of it for one job) and ``report`` (text and JSON).

Formulas are pure functions of seconds, bytes and counts; the only randomness comes from the caller's seed.

Checkpoints: ``checkpoint_layout`` (who writes what), ``checkpoint_store`` (the files) and ``checkpoint`` (the
``Checkpointer`` that a job uses).
"""
