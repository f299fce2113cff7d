"""Profiles of a GPU as PyTorch's profiler writes them, in each of its dialects, invented."""

import json

MM = {
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Input Dims": [[512, 1024], [1024, 256]],
    "Input Strides": [[1024, 1], [256, 1]],
    "Concrete Inputs": ["", ""],
}
MM_FLOPS = 2 * 512 * 1024 * 256
MM_BYTES = 2 * (512 * 1024 + 1024 * 256 + 512 * 256)
ADD = {
    "Input type": ["float", "float", "Scalar"],
    "Input Dims": [[1024, 1024], [1024, 1024], []],
    "Input Strides": [[1024, 1], [1024, 1], []],
    "Concrete Inputs": ["", "", "1"],
}
ADD_BYTES = 3 * 4 * 1024 * 1024


def event(cat, name, ts, dur, **args):
    """One event; ``tid`` and ``pid`` are its thread's, all else its arguments."""
    tid, pid = args.pop("tid", 1), args.pop("pid", 1)
    return {
        "ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": pid,
        "args": args,
    }  # fmt: skip


def launched(operator, kernel, begin, device_begin, device_dur, number, **args):
    """An operator of 20 us with a launch of 5 us inside, and the kernel that it launched."""
    stream = args.pop("stream", 7)
    return [
        event("cpu_op", operator, begin, 20, **{"External id": number, **args}),
        event("cuda_runtime", "cudaLaunchKernel", begin + 5, 5, correlation=1000 + number),
        event(
            "kernel", kernel, device_begin, device_dur, tid=stream, pid=0, stream=stream,
            correlation=1000 + number,
        ),
    ]  # fmt: skip


def step(number, ts, dur):
    """The profiler's mark of a step on the host."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def module(name, ts, dur):
    """A module around what runs meanwhile."""
    return event("python_function", f"nn.Module: {name}", ts, dur)


def write(path, events, device="NVIDIA H100 80GB HBM3"):
    """Write a profile and return the name of its file."""
    document = {"schemaVersion": 1, "traceEvents": events}
    if device is not None:
        document["deviceProperties"] = [{"id": 0, "name": device}]
    path.write_text(json.dumps(document))
    return str(path)
