"""Sweeps: one file that asks for many measurements, read, expanded and estimated before they run.

This package knows files, rows and times; what the keys of a table mean is told to it by the command
line (:mod:`pydlbench.cli.sweep_tables`), which has the readers of every command's options.
"""

from __future__ import annotations

from pydlbench.sweep.exclude import Rule, apply_rules
from pydlbench.sweep.file import KINDS, Key, SweepFile, Table, parse_sweep
from pydlbench.sweep.forecast import Forecast, Span
from pydlbench.sweep.rows import Job, Row

__all__ = [
    "KINDS",
    "Forecast",
    "Job",
    "Key",
    "Row",
    "Rule",
    "Span",
    "SweepFile",
    "Table",
    "apply_rules",
    "parse_sweep",
]
