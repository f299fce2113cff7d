"""The host's ear on a pipe: what counts as a reply, and which limit ends the waiting."""

import os

import pytest

from pydlbench.errors import WorkerError
from pydlbench.workers.channel import EndOfWorkerError, OverdueError, ReplyReader, SilentError


@pytest.fixture
def pipe():
    """What a worker writes to, and the ear."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", buffering=0) as mouth:
        listener = ReplyReader(stream)
        yield mouth, listener
        listener.close()


def test_beats_before_a_reply_are_ignored(pipe):
    mouth, listener = pipe
    mouth.write(b'{"heartbeat":1}\n{"heartbeat":2}\n{"ok":3}\n{"heartbeat":4}\n{"ok":5}\n')
    assert listener.reply(60, 60) == {"ok": 3}
    assert listener.reply(60, 60) == {"ok": 5}


def test_a_reply_that_has_come_is_read_even_past_both_limits(pipe):
    """It was the host that was stopped meanwhile."""
    mouth, listener = pipe
    mouth.write(b'{"heartbeat":1}\n' * 1000 + b'{"ok":3}\n')
    assert listener.reply(0, 0) == {"ok": 3}


def test_which_limit_it_was(pipe):
    mouth, listener = pipe
    mouth.write(b'{"heartbeat":1}\n')
    with pytest.raises(OverdueError):
        listener.reply(0.05, 60)
    with pytest.raises(SilentError):
        listener.reply(60, 0.05)


def test_half_a_line_is_no_message(pipe):
    mouth, listener = pipe
    mouth.write(b'{"ok"')
    with pytest.raises(SilentError):
        listener.reply(60, 0.05)
    mouth.write(b":1}\n")
    assert listener.reply(60, 60) == {"ok": 1}


def test_the_end_and_garbage(pipe):
    mouth, listener = pipe
    mouth.write(b"not JSON\n")
    with pytest.raises(WorkerError, match="unreadable message"):
        listener.reply(60, 60)
    mouth.close()
    with pytest.raises(EndOfWorkerError):
        listener.reply(60, 60)
