"""An invented ``pydlbench._cuda``, whose plans and kernels run on :mod:`invented_world`'s card.

Its functions have the signatures of ``pydlbench/_cuda.pyi``. Products and convolutions are taken to
be right, as if the device had compared them; results of memory-bound layers are computed.
"""

# ruff: noqa: ARG001, ARG002, ARG004 - the signatures are those of the real module

import time

import numpy as np
from invented_world import (
    CLOCK_HZ,
    FACTS,
    GRAPHS,
    HOST_S,
    LAUNCH_S,
    OBSERVERS,
    QUEUE,
    DeviceKernel,
    bytes_per_second,
    is_planted,
    peak,
)

from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.ops.table import ITEM_BYTES
from pydlbench.verification.elements import expected_pieces, image_view
from pydlbench.verification.inputs import UniformTensor, round_to, significand_bits
from pydlbench.words import GPU_PRECISIONS

#: Layers whose results the device compares.
_COMPARED = ("conv1d", "conv2d", "gemm", "pool1d", "pool2d")


class ProblemFields(dict):
    """The fields of a native problem, with the layer that has them."""

    layer = None


_problem_fields = Layer.problem_fields


def _with_layer(self):
    fields = ProblemFields(_problem_fields(self))
    fields.layer = self
    return fields


Layer.problem_fields = _with_layer


def built_with():
    return {"cuda": "13.0", "architectures": "90", "compiler": "invented"}


def device_count():
    return 1


def device_facts(index):
    if index:
        raise UnsupportedError(f"there is 1 GPU, and cuda:{index} is not among them")
    return dict(FACTS)


def load_libraries(cudnn=None, cublaslt=None):
    """Take whatever is there."""


def libraries():
    names = {"cudnn": "9.20.0", "cublaslt": "13.1.0"}
    return {name: {"version": v, "path": f"/invented/{name}.so"} for name, v in names.items()}


def device_properties(device):
    return "{}"


def push_range(name):
    """Mark nothing."""


def pop_range():
    """Mark nothing."""


class Device:
    def __init__(self, index):
        self.facts = device_facts(index)

    @property
    def free_bytes(self):
        return FACTS["memory_bytes"]

    def synchronize(self):
        QUEUE.check()


class Plan:
    """One of the invented ways to compute a layer."""

    primitive = "invented"
    library = "cuDNN 9.20.0"
    accumulate = "float32"
    notes = ()
    runtime_compiled = False
    tensors = ()
    tensor_cores = None

    def __init__(self, layer, pass_, mode, algorithm, variant, share, workspace_bytes=0):
        self.layer, self.pass_, self.propagation = layer, *pass_
        self.mode, self.algorithm, self.variant = mode, algorithm, variant
        self.layout = f"src {variant}, dst {variant}"
        self.workspace_bytes = workspace_bytes
        self.tensor_cores = "tc" in mode or mode == "tf32"
        moved = layer.bytes(self.pass_, ITEM_BYTES[mode])
        self.kernel = DeviceKernel(
            f"invented_{layer.op}_{algorithm.replace(' ', '_')}",
            layer.flops_executed(self.pass_),
            moved,
            mode,
            share,
        )

    def build(self):
        return 0.0


def plans(
    device,
    kind,
    pass_,
    mode,
    fields,
    *,
    layout="best",
    workspace_limit=1 << 28,
    fused=False,
    sweep=True,
    device_properties=None,
):
    layer = fields.layer
    name, _, propagation = pass_.partition("-")
    passes = (name, propagation) if name == "forward" else (pass_, "inference")
    if layer.kind not in (*_COMPARED, "pointwise"):
        raise UnsupportedError(f"{kind}: there is no native kernel for GPUs")
    variants = ("plain", "transposed") if kind == "gemm" else ("nhwc", "nchw")
    if layout in variants:
        variants = (layout,)
    made = []
    for number, variant in enumerate(variants):
        share = 1.0 - 0.15 * number
        made.append(Plan(layer, passes, mode, f"engine {number}", variant, share))
        made.append(Plan(layer, passes, mode, f"engine {number} k2", variant, share - 0.1, 1 << 20))
    return [plan for plan in made if plan.workspace_bytes <= workspace_limit]


def reference(kind, pass_, fields, *, fused=False):
    return "on the device" if fields.layer.kind in _COMPARED else None


class Arena:
    def __init__(self, device, inputs, drawn=None):
        self.inputs = dict(inputs)
        self.drawn = drawn or {}
        self.bytes = sum(array.nbytes for array in inputs.values())
        self.bytes += sum(4 * elements for elements, *_ in self.drawn.values())
        if 2 * self.bytes > FACTS["memory_bytes"]:
            raise InsufficientMemoryError(
                f"{2 * self.bytes} bytes of device memory are needed; "
                f"{FACTS['memory_bytes']} bytes are free"
            )

    def clear(self):
        """Keep the inputs: there is no device memory."""


class Work:
    """Kernels of some executions, which take the card's time."""

    def __init__(self, kernels, executions=1, waits=False, enqueue_s=HOST_S):
        self._kernels, self._executions, self._waits = kernels, executions, waits
        self._enqueue_s = enqueue_s

    def seconds(self):
        for kernel in self._kernels:
            QUEUE.launch(kernel)
        QUEUE.idle_at = 0.0  # the sampler's own stream: nobody else waits for it
        return sum(kernel.seconds for kernel in self._kernels) / self._executions

    def sample(self, samples, inner=1, untimed=0):
        seconds = self.seconds()
        # A thousandth between samples, so that intervals have a width.
        steps = 1 + 1e-3 * np.arange(samples) / max(samples, 1)
        return {
            "seconds": seconds * steps,
            "clock_hz": np.full(samples, CLOCK_HZ),
            "enqueue_s": np.full(samples, self._enqueue_s),
            "wall_s": samples * inner * seconds,
            "gate_timeouts": samples if self._waits else 0,
        }

    def launch_times(self, repetitions=20):
        seconds = self.seconds()
        return {
            "single_s": seconds + LAUNCH_S,
            "event_s": seconds,
            "graph_s": seconds,
            "host_s": self._enqueue_s,
            "wall_s": seconds + LAUNCH_S,
        }

    def run_for(self, seconds):
        time.sleep(seconds)
        return {"executions": max(1, int(seconds / self.seconds())), "seconds": seconds}

    def kernels(self):
        shape = {"grid": [132, 1, 1], "block": [128, 1, 1], "shared_bytes": 4096, "registers": 168}
        return [{"name": kernel.name, **shape} for kernel in self._kernels]


class Kernel(Work):
    build_seconds = 0.01
    rotating_sets = 1

    def __init__(self, plan, arena, cache="hot", timing="events", cold_bytes=0):
        if timing == "cuda-graph" and is_planted("capture", plan.kernel.name):
            raise PrimitiveError("operation not permitted when stream is capturing")
        super().__init__([plan.kernel])
        self.plan, self._arena = plan, arena

    def launch_times(self, repetitions=20):
        uncaptured = is_planted("capture", self.plan.kernel.name)
        times = super().launch_times(repetitions)
        return times | ({"graph_s": np.nan} if uncaptured else {})

    def run_poisoned(self):
        self.seconds()

    def run_marked(self, name):
        self.seconds()

    def verify(self, reference, arena):
        wrong = is_planted("wrong", self.plan.kernel.name)
        return {
            "max_error": 0.5 if wrong else 0.0,
            "where": [0, 0, 0, 0],
            "got": 1.0,
            "expected": 2.0 if wrong else 1.0,
            "unwritten": 0,
            "infinite": 0,
            "elements": 1000,
            "terms": 27,
        }

    def output(self):
        return next(iter(self.outputs().values()))

    def outputs(self):
        plan, shapes = self.plan, self.plan.layer.shapes()
        roles = plan.layer.writes(plan.pass_, plan.propagation)
        results = {role: np.zeros(shapes[role], np.float32) for role in roles}
        if is_planted("wrong", plan.kernel.name):
            return results
        precisions = {significand_bits(name): name for name in GPU_PRECISIONS}
        inputs = dict(self._arena.inputs)
        for role, (_, *key, bits, _) in self._arena.drawn.items():
            inputs[role] = UniformTensor(shapes[role], tuple(key), precisions[bits]).array()
        pieces = expected_pieces(plan.layer, plan.pass_, plan.propagation, inputs)
        for piece in pieces:
            view = image_view(plan.layer, piece.role, results[piece.role])
            stored = "fp32" if plan.layer.in_float32(piece.role) else plan.mode
            view[piece.cut] = round_to(stored, np.reshape(piece.value, view[piece.cut].shape))
        return results


class ForeignKernel(Work):
    def __init__(self, device, enqueue, launches=1, cache="hot"):
        kernels, waits, host_s = OBSERVERS[-1](lambda: enqueue(1))
        super().__init__(kernels, 1, waits, host_s)

    @staticmethod
    def of_graph(device, graph, executions=1):
        made = ForeignKernel.__new__(ForeignKernel)
        Work.__init__(made, GRAPHS[graph], executions, enqueue_s=HOST_S / executions)
        return made


# -----------------------------------------------------------------------------
# Probes.


def _reading(rate, kernel):
    return {
        "per_second": rate,
        "median_per_second": 0.99 * rate,
        "clock_hz": CLOCK_HZ,
        "median_clock_hz": CLOCK_HZ,
        "seconds": 0.05,
        "rounds": 10,
        "kernel": kernel,
    }


def fma_peak(device, precision, seconds=0.1):
    return _reading(0.97 * peak(precision), f"fma {precision}")


def bandwidth(device, kind, bytes, seconds=0.1):  # noqa: A002 - as the real one
    return _reading(bytes_per_second(bytes), kind)


def launch_seconds(device):
    return {
        "single_kernel_s": 2 * LAUNCH_S,
        "empty_kernel_s": LAUNCH_S,
        "host_s": HOST_S,
        "graph_node_s": LAUNCH_S / 2,
    }
