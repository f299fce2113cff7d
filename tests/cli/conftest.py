"""Files that several commands read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import invented_sweep
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep with a row of every kind."""
    path = tmp_path / "all.toml"
    path.write_text(invented_sweep.FILE, encoding="utf-8")
    return path
