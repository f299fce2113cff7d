"""The scripts in ``benchmarks/`` as modules: no package, so their folder is put on the path."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], Any]]:
    """Import a script, or a part of one, by its name: ``acceptance.journal``."""
    sys.path.insert(0, str(_FOLDER))
    yield importlib.import_module
    sys.path.remove(str(_FOLDER))
