"""Atoll: collective communication as data. See README.md for the six files to read first."""

__version__ = "0.1.0"
