from __future__ import annotations

import io

from pydlbench.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream, times, **options):
    clock = iter(times)
    progress = Progress(stream, now=lambda: next(clock), **options)
    progress(0, 8, "conv1")
    progress(3, 8, "conv3")
    progress.close()
    return stream.getvalue()


def test_nothing_in_the_first_two_seconds():
    assert show(Terminal(), [0, 0.1, 1.9]) == ""


def test_bar_appears_later():
    text = show(Terminal(), [0, 0.1, 2.1, 2.1])
    assert "3/8" in text
    assert "conv3" in text


def test_no_bar_without_a_terminal_or_when_quiet():
    assert show(io.StringIO(), [0, 5, 6]) == ""
    assert show(Terminal(), [0, 5, 6], quiet=True) == ""
