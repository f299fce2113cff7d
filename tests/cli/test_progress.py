import io
import itertools
import threading

from pydlbench.cli.terminal import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream, times, **options):
    clock = itertools.chain(times, itertools.repeat(times[-1]))
    progress = ProgressLine(stream, now=lambda: next(clock), **options)
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


def test_a_line_now_and_then_without_a_terminal():
    assert show(io.StringIO(), [0, 5, 6]) == ""
    assert show(io.StringIO(), [0, 5, 60]) == "3 of 8 done after 60 s, about 2 min left: conv3\n"


def test_a_time_limit_bounds_the_rest():
    for done, total, left in ((0, 1, "at most 40 s"), (1, 2, "at most 40 s"), (7, 8, "about 9 s")):
        stream, clock = io.StringIO(), iter([0, 60, 60])
        progress = ProgressLine(stream, limit_s=100, now=lambda clock=clock: next(clock))
        progress(done, total, "conv1")
        progress.close()
        assert f", {left} left: conv1" in stream.getvalue()


def test_nothing_when_quiet():
    for stream in (Terminal(), io.StringIO()):
        assert show(stream, [0, 5, 60], quiet=True) == ""


def test_verbose_is_a_line_for_each(capsys):
    show(io.StringIO(), [0, 1, 2], verbose=True)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "conv1",
        "conv3",
    ]


class Watched(Terminal):
    """Tells when something was drawn."""

    def __init__(self):
        super().__init__()
        self.drawn = threading.Semaphore(0)

    def write(self, text):
        count = super().write(text)
        if "conv1" in text:
            self.drawn.release()
        return count


def test_bar_appears_and_moves_within_a_row():
    stream = Watched()
    progress = ProgressLine(stream, delay_s=0.01, every_s=0.01)
    progress(0, 1, "conv1")
    # Without a second call: a time-out here is a bar that does not move.
    assert stream.drawn.acquire(timeout=30)
    assert stream.drawn.acquire(timeout=30)
    progress.close()
    length = len(stream.getvalue())
    assert not any(thread.name == "progress" for thread in threading.enumerate())
    progress(1, 1, "")
    assert len(stream.getvalue()) == length


def test_no_thread_when_quiet():
    for stream, quiet in ((Terminal(), True), (io.StringIO(), True), (None, False)):
        progress = ProgressLine(stream, quiet=quiet, delay_s=0.0)
        progress(0, 1, "conv1")
        assert not any(thread.name == "progress" for thread in threading.enumerate())
        progress.close()


def test_terminal_that_goes_away_costs_nothing():
    class Gone(Terminal):
        def write(self, _):
            raise OSError(5, "Input/output error")

    progress = ProgressLine(Gone(), delay_s=0.0)
    progress(0, 2, "conv1")
    progress(1, 2, "conv2")
    progress.close()
