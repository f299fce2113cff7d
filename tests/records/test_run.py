"""The record of a run: its command."""

import pytest

from pydlbench.records.run import command_line, command_text


@pytest.mark.parametrize(
    ("program", "recorded"),
    [
        ("/home/me/env/lib/pydlbench/__main__.py", "pydlbench"),
        ("/home/me/env/bin/pydlbench", "pydlbench"),
        ("/home/me/bench.py", "/home/me/bench.py"),
        ("/home/me/bench/__main__.py", "/home/me/bench/__main__.py"),
    ],
)
def test_a_recorded_command_has_no_folder_of_ours(monkeypatch, program, recorded):
    monkeypatch.setattr("sys.argv", [program, "layers", "--shape", "conv 3"])
    command = command_line()
    assert command == (recorded, "layers", "--shape", "conv 3")
    shown = "layers --shape 'conv 3'"
    assert command_text(list(command)) == (
        shown if recorded == "pydlbench" else f"{program} {shown}"
    )
