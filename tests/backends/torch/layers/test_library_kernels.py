"""What oneDNN and MKL print while PyTorch calls them, caught where they write it."""

import contextlib
import os

import pytest
import torch

from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.torch.layers import library_kernels as trace


def test_what_is_written_to_the_descriptor_is_caught_and_nothing_after(capfd):
    print("before")
    with trace.printed() as lines:
        os.write(1, b"from a library\n")
    print("after")
    assert "".join(lines) == "from a library\n"
    assert capfd.readouterr().out == "before\nafter\n"


def test_the_descriptor_comes_back_after_an_error(capfd):
    with pytest.raises(ValueError, match="no"), trace.printed():
        raise ValueError("no")
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_reports_are_off_again(capfd):
    x, w = torch.rand(2, 16, 9, 9), torch.rand(8, 16, 3, 3)
    with torch.inference_mode():
        said = trace.library_output(lambda: torch.conv2d(x, w))
        torch.conv2d(x, w)
    assert capfd.readouterr().out == ""
    if torch.backends.mkldnn.is_available():
        assert [one.primitive for one in parse(said) if one.primitive != "reorder"] == [
            "convolution"
        ]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_a_logged_turn_times_a_call_that_is_not_logged(monkeypatch, capfd):
    x, w = torch.rand(2, 16, 9, 9), torch.rand(8, 16, 3, 3)
    logging, seen = [], []

    def call():
        seen.append(bool(logging))
        torch.conv2d(x, w)

    @contextlib.contextmanager
    def reports(real=trace._reports):
        logging.append(1)
        with real():
            yield
        logging.pop()

    monkeypatch.setattr(trace, "_reports", reports)
    with torch.inference_mode():
        turn = trace.logged_turn(call, plain=True)
        assert seen == [False, False, True]
        assert trace.logged_turn(call, plain=False).plain_s is None
    assert seen[3:] == [True]
    assert min(turn.logged_s, turn.plain_s) > 0
    # Of three calls one is in the log.
    names = [one.primitive for one in turn.executions]
    assert names.count("convolution") == 1
    assert capfd.readouterr().out == ""
