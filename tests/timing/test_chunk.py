import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.timing.chunk import Chunk
from pydlbench.workers.channel import encode


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    st.lists(st.floats(1e6, 1e10), max_size=3),
    st.floats(0, 1e3),
)
def test_json_round_trip(seconds, clock, wait):
    chunk = Chunk(
        seconds=tuple(seconds),
        involuntary=7,
        clock_hz=tuple(clock),
        run_delay_s=wait,
        steal_s=0.01,
        wall_s=2.0,
        threads=3,
    )
    assert msgspec.convert(json.loads(encode({"ok": chunk}))["ok"], Chunk) == chunk


def test_only_seconds_is_required():
    assert msgspec.convert({"seconds": [1]}, Chunk) == Chunk(seconds=(1.0,))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"seconds": ()}, "without samples"),
        ({"seconds": (1.0, float("nan"))}, "not finite"),
        ({"seconds": (-1.0,)}, "negative"),
        ({"seconds": (1.0, 2.0), "parts": ((1.0,),)}, "2 samples but 1"),
        ({"seconds": (1.0,), "clock_hz": (0.0,)}, "clock"),
        ({"seconds": (1.0,), "run_delay_s": -1.0}, "run_delay_s"),
        ({"seconds": (1.0,), "steal_s": float("inf")}, "steal_s"),
        ({"seconds": (1.0,), "threads": 0}, "0 threads"),
    ],
)
def test_impossible_chunks_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Chunk(**bad)  # type: ignore[arg-type]
