"""Signs of life, on a stream of the test's own: when they come, and where they never do."""

import io
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from pydlbench.workers.channel import ReplyWriter

HEARTBEAT_S = 0.01


class Stream(io.RawIOBase):
    """A pipe that takes three bytes at a time, slowly; whoever beats has time to get between."""

    def __init__(self):
        self.written = bytearray()
        self.beaten = threading.Event()

    def write(self, line):
        part = bytes(line[:3])
        self.written += part
        time.sleep(1e-4)
        if b'"heartbeat":3' in self.written:
            self.beaten.set()
        return len(part)


def messages(stream):
    return [json.loads(line) for line in bytes(stream.written).splitlines()]


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def replies(stream):
    replies = ReplyWriter(stream, HEARTBEAT_S)
    yield replies
    replies.close()


def test_a_long_request_beats_until_it_is_answered(stream, replies):
    replies.begin()
    assert stream.beaten.wait(30)
    replies.answer({"ok": 1})
    before = len(stream.written)
    *beats, reply = messages(stream)
    assert [one["heartbeat"] for one in beats] == list(range(1, len(beats) + 1))
    assert len(beats) >= 3
    assert reply == {"ok": 1}
    time.sleep(5 * HEARTBEAT_S)
    assert len(stream.written) == before


def test_nobody_beats_without_a_request(stream, replies):
    time.sleep(5 * HEARTBEAT_S)
    assert not stream.written
    assert replies._thread.is_alive()


def test_short_requests_do_not_beat():
    stream = Stream()
    replies = ReplyWriter(stream, 30.0)
    for number in range(3):
        replies.begin()
        replies.answer({"ok": number})
    replies.close()
    assert messages(stream) == [{"ok": 0}, {"ok": 1}, {"ok": 2}]


def test_a_later_request_beats_again(stream, replies):
    replies.begin()
    replies.answer({"ok": 0})
    time.sleep(5 * HEARTBEAT_S)  # the thread has gone to sleep for good
    replies.begin()
    assert stream.beaten.wait(30)


def test_a_thread_that_is_about_to_sleep_ends_as_well(replies):
    replies.begin()
    replies.answer({"ok": 0})
    with replies._lock:
        time.sleep(5 * HEARTBEAT_S)  # the thread waits for the lock, to find nothing to do
        closing = threading.Thread(target=replies.close)
        closing.start()
        time.sleep(5 * HEARTBEAT_S)
    closing.join(30)
    assert not replies._thread.is_alive()


def test_beats_never_land_inside_a_reply(stream):
    """ReplyWriter of 3 KB take 0.1 s on this stream, ten times as long as the beats are apart."""
    replies = ReplyWriter(stream, HEARTBEAT_S)
    text = "x" * 3000
    for number in range(5):
        replies.begin()
        time.sleep(3 * HEARTBEAT_S)
        replies.answer({"ok": number, "text": text})
    replies.close()
    found = messages(stream)
    assert [one["ok"] for one in found if "ok" in one] == [0, 1, 2, 3, 4]
    assert any("heartbeat" in one for one in found)
    assert all(one["text"] == text for one in found if "ok" in one)


_PROCESS = """
import os, sys, time
from pydlbench.workers.channel import ReplyWriter
replies = ReplyWriter(os.fdopen(os.dup(1), "wb", buffering=0), 0.05)
replies.begin()
time.sleep(float(sys.argv[1]))
"""


def test_the_thread_keeps_no_process_alive():
    """Its owner ends without a word to it, in the middle of a request."""
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, "0"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_worker_whose_host_is_gone_ends():
    """Nobody will read the reply, so nobody needs the rest of an hour's work."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS, "3600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        process.stdout.readline()  # it beats
        process.stdout.close()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.stderr.close()


def test_a_large_reply_fits_through_a_real_pipe():
    reader, writer = os.pipe()
    replies = ReplyWriter(os.fdopen(writer, "wb", buffering=0), HEARTBEAT_S)
    line = []
    with os.fdopen(reader, "rb") as ear:
        thread = threading.Thread(target=lambda: line.append(ear.readline()))
        thread.start()
        replies.answer({"ok": "x" * 300_000})
        thread.join(60)
    replies.close()
    replies._stream.close()
    assert len(json.loads(line[0])["ok"]) == 300_000
