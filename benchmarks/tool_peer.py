"""A framework's side of a comparison: statements, timed with the framework's own tool.

Started by ``rows_vs_tools.py`` with the name of a framework and the CPUs. Requests and replies are
JSON lines, as those of ``torch_peer.py``. PyTorch's tool is ``torch.utils.benchmark.Timer``; those
of TensorFlow and JAX have none, and their documentation uses ``timeit``. As in any user's loop the
result of a statement is dropped before the statement runs again.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import time
from typing import Any

framework, cpus = sys.argv[1], json.loads(sys.argv[2])
os.sched_setaffinity(0, cpus)
if framework == "torch":
    import torch
    from torch.utils.benchmark import Timer

    torch.set_num_threads(len(cpus))
    torch.set_grad_enabled(False)
    Timer = functools.partial(Timer, num_threads=len(cpus))
elif framework == "tensorflow":
    from timeit import Timer

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(len(cpus))
    tf.config.threading.set_inter_op_parallelism_threads(1)
else:
    from timeit import Timer

    import jax  # noqa: F401 - its version


def seconds(timer: Any, number: int) -> float:
    """Return the mean seconds of a statement."""
    taken = timer.timeit(number)
    return taken / number if isinstance(taken, float) else taken.raw_times[0] / number


def untimed(number: int) -> int:
    """Return how often PyTorch's ``timeit`` runs a statement before it is timed."""
    return max(number // 100, 2) if framework == "torch" else 0


def answer(ask: dict, timers: dict[int, Any]) -> dict:
    """Return the reply to a request."""
    if ask["op"] == "run":
        exec(ask["code"], {})
    elif ask["op"] == "prepare":
        names: dict[str, Any] = {}
        exec(ask["setup"], names)
        timers[ask["id"]] = Timer(ask["statement"], globals=names), ask.get("calls", 1)
    elif ask["op"] == "sample":
        (timer, calls), inner = timers[ask["id"]], ask["inner"]
        if ask["untimed"]:
            seconds(timer, ask["untimed"])
        start, faults = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        samples = [seconds(timer, inner) / calls for _ in range(ask["samples"])]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        return {
            "seconds": samples,
            "wall_s": time.monotonic() - start,
            "faults": faults / (calls * (inner + untimed(inner)) * ask["samples"]),
        }
    elif ask["op"] == "release":
        timers.clear()
    elif ask["op"] == "describe":
        return {"version": sys.modules[framework].__version__}
    return {}


def main() -> None:
    """Answer requests on the standard streams."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    timers: dict[int, Any] = {}
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), timers)
        except Exception as error:  # noqa: BLE001 - whatever it is costs one row
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
