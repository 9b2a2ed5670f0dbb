"""Collectives in virtual time: flows over a topology, closed forms, NCCL as it behaves, calibration."""
