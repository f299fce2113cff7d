"""Files to be written: refused before anything is measured, replaced whole or not at all."""

import io
import os
import stat
from pathlib import Path

import pytest

from pydlbench.errors import UsageError
from pydlbench.report.text import check_writable, write_text


def test_check_leaves_no_trace(tmp_path):
    check_writable("--json", str(tmp_path / "new.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["missing/new.json", "folder", "file/new.json", ""])
def test_bad_paths_are_refused_in_one_line(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    target = str(tmp_path / name) if name else ""
    with pytest.raises(UsageError) as caught:
        check_writable("--json", target)
    assert str(caught.value).startswith("--json ")
    assert "\n" not in str(caught.value)


def test_nearest_folder_is_named(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(UsageError, match=r"nearest: .*/results$"):
        check_writable("--csv", str(tmp_path / "result" / "a.csv"))


def test_nul_in_the_name_is_refused():
    with pytest.raises(UsageError):
        check_writable("--json", "a\0b")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_read_only_file_is_refused(tmp_path):
    path = tmp_path / "old.json"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(UsageError, match="permission"):
        check_writable("--json", str(path))


def test_written_file_replaces_the_old_one_and_keeps_its_mode(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(0o640)
    write_text(str(path), "new\n")
    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_link_stays_a_link(tmp_path):
    real = tmp_path / "real.json"
    real.write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(real)
    write_text(str(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_bytes_that_are_no_text_are_escaped_the_way_of_json(tmp_path):
    path = tmp_path / "a.json"
    write_text(str(path), '"\udce9"')
    assert path.read_text() == '"\\udce9"'
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    write_text("-", '"\udce9\u00e9"', stdout=stream)
    assert raw.getvalue().decode() == '"\\udce9\u00e9"'


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text(str(path), "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_device_is_written_to_and_not_replaced():
    check_writable("--json", os.devnull)
    write_text(os.devnull, "text")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
