"""``pydlbench sweep``: mistakes are one line, and leave no trace."""

import pytest
from invented_sweep import FILE, Sessions, sweep

from pydlbench.errors import UsageError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[layers]]\nprecision = "bf17"', r"precision bf17: not a valid choice; nearest: bf16"),
        ('[[layers]]\nshape = "cnv3"', "cnv3: no such layer"),
        ('[[layers]]\njson = "x"', "json: belongs to the sweep's own command line"),
        ('[[layers]]\nstore = "x"', "store: belongs to"),
        ('[[estimate]]\nmodel = "mnist"\nthreads = 9999', "threads 9999: "),
        ('[[estimate]]\nmodel = "vgg17"', "vgg17: no such model; nearest: vgg1"),
        ("[[estimate]]\nbatch = 1", 'model: not given; nearest: model = "alexnet-owt"'),
        ('[[step]]\nframework = "torch"', "model: not given"),
        ('[[breakdown]]\nmodel = "--help"', "model: not given"),
        ('[[step]]\nmodel = "mnist"\nprotocol = "x"', "protocol: is for published scripts"),
        ('[[breakdown]]\nmodel = "mnist"\nmodes = "x"', "modes: no such key; nearest: mode"),
    ],
)
def test_mistakes_name_file_table_and_key_and_leave_no_trace(text, message, tmp_path, store_path):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        sweep(Sessions(), path)
    assert str(caught.value).startswith(f"{path}: [[")
    assert "--" not in str(caught.value)
    assert not store_path.exists()


def test_the_nearest_file_is_named(file):
    with pytest.raises(UsageError, match=r"al\.toml: cannot be read .*nearest: .*all\.toml"):
        sweep(Sessions(), file.with_name("al.toml"))
