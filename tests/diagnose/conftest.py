"""An invented machine and framework: every fault is planted, and costs what is written here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pydlbench.runner import interleaved

# The tests beside this file take it from here: pytest puts no folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
import planted  # noqa: F401 - as said

sys.path.pop(0)


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch):
    monkeypatch.setattr(interleaved, "REST_S", 0.0)
