"""Files that several commands read."""

import invented_sweep
import pytest


@pytest.fixture
def file(tmp_path):
    """A sweep with a row of every kind."""
    path = tmp_path / "all.toml"
    path.write_text(invented_sweep.FILE, encoding="utf-8")
    return path
