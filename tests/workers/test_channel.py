import io
import json

import pytest

from pydlbench import errors
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.workers import channel
from pydlbench.workers.channel import ReplyWriter
from pydlbench.workers.worker import serve

KINDS = (
    errors.UsageError,
    errors.UnsupportedError,
    errors.PrimitiveError,
    errors.InsufficientMemoryError,
    errors.BackendMissingError,
    errors.WorkerError,
)


def test_a_message_is_one_line():
    message = {"op": "prepare", "text": "two\nlines, \u00fcmlaut", "number": 1.5, "none": None}
    line = channel.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert channel.decode(line) == message


@pytest.mark.parametrize("line", [b"garbage\n", b"\xff\xfe\n", b"", b'["a list"]\n', b"3\n"])
def test_what_is_no_message_is_refused(line):
    with pytest.raises(errors.WorkerError, match="unreadable message"):
        channel.decode(line)


@pytest.mark.parametrize("kind", KINDS)
def test_our_errors_cross_the_wire_as_themselves(kind):
    reply = json.loads(json.dumps(channel.error_reply(kind("what and why"))))
    with pytest.raises(kind, match=r"^what and why$") as caught:
        channel.raise_error(reply["error"])
    assert type(caught.value) is kind


def test_any_other_error_arrives_with_its_name():
    reply = channel.error_reply(ZeroDivisionError("division by zero"))
    with pytest.raises(errors.WorkerError, match=r"^ZeroDivisionError: division by zero$"):
        channel.raise_error(reply["error"])


def test_out_of_memory_arrives_as_such():
    with pytest.raises(errors.InsufficientMemoryError, match="out of memory: 8 TB"):
        channel.raise_error(channel.error_reply(MemoryError("8 TB"))["error"])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA: tried to allocate 9 GiB"),
        type("ResourceExhaustedError", (Exception,), {})("failed to allocate"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_every_frameworks_word_for_it_is_out_of_memory_with_advice(error):
    with pytest.raises(errors.InsufficientMemoryError) as caught:
        channel.raise_error(channel.error_reply(error)["error"])
    text = str(caught.value)
    assert text.startswith("out of memory")
    assert text.endswith("; try a smaller --batch")
    assert str(error) in text


def test_a_case_that_does_not_fit_keeps_its_own_words():
    error = errors.InsufficientMemoryError("needs 3 GB; try --batch 4")
    assert channel.error_reply(error)["error"]["message"] == "needs 3 GB; try --batch 4"


def test_the_server_answers_each_request_in_order_and_outlives_bad_ones():
    class Backend:
        name = "invented"

        def describe(self):
            return {"version": "1"}

        def probe(self, name, arguments):
            return {"name": name, **arguments}

    requests = [
        channel.encode(channel.Describe()),
        b"garbage\n",
        b'{"op":"__init__"}\n',
        b'{"noop":1}\n',
        channel.encode(channel.Sample(5, ChunkRequest(samples=1))),
        b'{"op":"release"}\n',
        channel.encode(channel.Probe("clock", {"n": 3})),
    ]
    stream = io.BytesIO()
    replies = ReplyWriter(stream)
    serve(Backend(), io.BytesIO(b"".join(requests)), replies)
    replies.close()
    answers = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert answers[0] == {"ok": {"version": "1"}}
    assert "unreadable message" in answers[1]["error"]["message"]
    assert all("not an operation" in one["error"]["message"] for one in answers[2:4])
    assert answers[4]["error"] == {"type": "KeyError", "message": "KeyError: 5"}
    assert "kernel" in answers[5]["error"]["message"]
    assert answers[6] == {"ok": {"name": "clock", "n": 3}}
