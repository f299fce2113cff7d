"""Files that several commands read."""

import invented_sweep
import pytest


@pytest.fixture
def write(tmp_path):
    """Write the file of a sweep."""

    def write_text(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


@pytest.fixture
def file(write):
    """A sweep with a row of every kind."""
    return write(invented_sweep.FILE)
