"""An invented ``torch.cuda``: tensors live on the CPU, time is that of the invented card.

``torch.device("cuda:0")`` is the CPU. Calls compute on the CPU when they are enqueued, so that
results are right, and their host time is real. The kernels of a call follow from PyTorch's own
profiler: one for each operator that is no view, with FLOPs and bytes from the shapes.
"""

import contextlib
import math
import time
from types import SimpleNamespace

from invented_world import (
    FACTS,
    GRAPHS,
    LAUNCH_S,
    OBSERVERS,
    PLANTED,
    QUEUE,
    DeviceKernel,
    is_planted,
)

#: Operators after which the host waits for the device, and which cannot be captured.
_WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
_ITEM_BYTES = {"double": 8, "long int": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1}


def install(torch):
    """Give PyTorch an invented GPU."""
    InventedTorch(torch).install()


class InventedTorch:
    """PyTorch's module, with what replaces its functions."""

    def __init__(self, torch):
        self.torch = torch
        self.on_device = False  # whether this process uses the card
        self.capturing = False

    def install(self):
        torch, cuda = self.torch, self.torch.cuda
        self.real_device = torch.device
        self.real_profile = torch.profiler.profile
        properties = SimpleNamespace(
            name=FACTS["name"],
            uuid=FACTS["uuid"].removeprefix("GPU-"),
            major=9,
            minor=0,
            multi_processor_count=FACTS["multiprocessors"],
            total_memory=FACTS["memory_bytes"],
            L2_cache_size=FACTS["l2_bytes"],
        )
        torch.version.cuda = "13.0"
        cuda.is_available = lambda: True
        cuda.device_count = lambda: 1
        cuda.current_device = lambda: 0
        cuda.set_device = self.use
        cuda.get_device_properties = lambda _=None: properties
        cuda.get_device_capability = lambda _=None: (9, 0)
        cuda.get_device_name = lambda _=None: FACTS["name"]
        cuda.synchronize = lambda _=None: QUEUE.wait()
        cuda.empty_cache = lambda: None
        cuda.Stream = cuda.ExternalStream = InventedStream
        cuda.current_stream = lambda _=None: InventedStream()
        cuda.stream = lambda _: contextlib.nullcontext()
        cuda.Event = InventedEvent
        cuda.CUDAGraph = InventedGraph
        cuda.graph = self.capture
        cuda.is_current_stream_capturing = lambda: self.capturing
        cuda.mem_get_info = lambda _=None: (FACTS["memory_bytes"],) * 2
        cuda.memory_allocated = cuda.max_memory_allocated = lambda _=None: 1 << 20
        cuda.memory_reserved = cuda.max_memory_reserved = lambda _=None: 1 << 21
        cuda.reset_peak_memory_stats = lambda _=None: None
        cuda.default_generators = InventedGenerators()
        cuda.manual_seed = cuda.manual_seed_all = lambda _: None
        cuda.get_rng_state = lambda _=None: torch.get_rng_state()
        cuda.set_rng_state = lambda state, _=None: torch.set_rng_state(state)
        torch.Tensor.pin_memory = lambda tensor, *_: tensor
        torch.device = self._device_type()
        torch.autocast = self._autocast_type()
        torch.profiler.profile = self._profile_type()
        self._place_tensors()
        OBSERVERS.append(self.observe)

    def use(self, _):
        self.on_device = True

    # --- places ---------------------------------------------------------------------------------

    def on_cpu(self, place):
        """Return the CPU for the invented card, anything else as it is."""
        if isinstance(place, str) and place.startswith("cuda"):
            return self.real_device("cpu")
        return place

    def _device_type(self):
        real = self.real_device

        class DeviceMeta(type):
            def __instancecheck__(cls, value):
                return isinstance(value, real)

            def __call__(cls, kind, *index, **words):
                return real("cpu") if str(kind).startswith("cuda") else real(kind, *index, **words)

        class InventedDevice(metaclass=DeviceMeta):
            """Stands for ``torch.device``."""

        return InventedDevice

    def _autocast_type(self):
        class InventedAutocast(self.torch.autocast):
            def __init__(self, device_type, *arguments, **words):
                kind = "cpu" if device_type == "cuda" else device_type
                super().__init__(kind, *arguments, **words)

        return InventedAutocast

    def _place_tensors(self):
        from torch.overrides import TorchFunctionMode

        on_cpu, torch = self.on_cpu, self.torch

        class PlacedTensors(TorchFunctionMode):
            """Puts tensors of the card into the CPU's memory, as many as the card has room for."""

            def __torch_function__(self, function, types, arguments=(), words=None):
                words = {name: on_cpu(value) for name, value in (words or {}).items()}
                result = function(*map(on_cpu, arguments), **words)
                if isinstance(result, torch.Tensor) and "memory" in PLANTED:
                    wanted = result.numel() * result.element_size()
                    if wanted > FACTS["memory_bytes"] / 4:
                        raise torch.OutOfMemoryError(
                            f"CUDA out of memory. Tried to allocate {wanted} bytes."
                        )
                return result

        self._mode = PlacedTensors()
        self._mode.__enter__()

    # --- kernels --------------------------------------------------------------------------------

    def _profile_type(self):
        invented = self

        class InventedProfile(self.real_profile):
            """PyTorch's profiler, which also has the card's kernels."""

            def __init__(self, *arguments, **words):
                super().__init__(*arguments, **(words | {"record_shapes": True}))

            def stop(self):
                super().stop()
                if invented.on_device and "profiler" not in PLANTED:
                    events = list(self.profiler.kineto_results.events())
                    events += invented.device_events(events)
                    self.profiler.kineto_results = SimpleNamespace(events=lambda: events)

        return InventedProfile

    def launching(self, events):
        """Return the outermost operators that launch a kernel, in their order."""
        from pydlbench.backends.torch.steps.profiled import contains

        found, end_ns = [], -1
        for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
            name = event.name()
            if not name.startswith("aten::") or event.start_ns() < end_ns or contains(name):
                continue
            end_ns = event.start_ns() + event.duration_ns()
            if not self._is_view(name):
                found.append(event)
        return found

    def _is_view(self, name):
        from pydlbench.calls.seen import meaning_of
        from pydlbench.records.trace import RecordedCall

        short = name.removeprefix("aten::")
        if short.startswith(("empty", "new_empty", "resize", "set_")):
            return True
        operator = f"aten.{short}"
        try:
            return meaning_of(RecordedCall(signature=f"{operator}()", operator=operator)).kind == (
                "view"
            )
        except Exception:  # noqa: BLE001 - it has no operands to be read
            return False

    def device_events(self, events):
        """Return launches and kernels of the operators, with a queue of the device."""
        made, idle_ns = [], 0
        for number, event in enumerate(self.launching(events), 1 << 20):
            kernel = kernel_of(event)
            launched_ns = event.start_ns() + event.duration_ns() // 2
            made.append(DeviceEvent("cudaLaunchKernel", launched_ns, 500, number, on_host=True))
            begin_ns = max(idle_ns, launched_ns + 1500)
            length_ns = round(kernel.seconds * 1e9)
            made.append(DeviceEvent(kernel.name, begin_ns, length_ns, number))
            idle_ns = begin_ns + length_ns
        return made

    def observe(self, call):
        """Return the kernels of a call, whether it waits for the device, and the host's seconds."""
        begin = time.perf_counter()
        call()
        host_s = time.perf_counter() - begin
        profiler = self.real_profile(record_shapes=True)
        profiler.start()
        call()
        profiler.stop()
        events = list(profiler.profiler.kineto_results.events())
        kernels = [kernel_of(event) for event in self.launching(events)]
        return kernels, any(map(waits, events)), host_s

    @contextlib.contextmanager
    def capture(self, graph, *_, **__):
        profiler = self.real_profile(record_shapes=True)
        profiler.start()
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False
            profiler.stop()
        events = list(profiler.profiler.kineto_results.events())
        kernels = [kernel_of(event) for event in self.launching(events)]
        if any(map(waits, events)) or any(is_planted("capture", one.name) for one in kernels):
            error = RuntimeError("CUDA error: operation not permitted when stream is capturing")
            error.error_code = 900
            raise error
        GRAPHS[id(graph)] = kernels


def waits(event):
    """Whether the host waits for the device in an operator."""
    return event.name() in _WAITING or is_planted("waits", event.name())


def kernel_of(event):
    """Return the kernel of an operator, with its work from the shapes of the operands."""
    shapes = [tuple(shape) for shape in event.shapes() if shape and isinstance(shape[0], int)]
    sizes = [_ITEM_BYTES.get(name, 4) for name in event.dtypes()]
    moved = 2 * sum(
        math.prod(s) * size
        for s, size in zip(event.shapes(), sizes, strict=False)
        if s and isinstance(s[0], int)
    )
    name = event.name().removeprefix("aten::")
    flops = 0.0
    if name.endswith(("mm", "bmm")) and len(shapes) >= 2:
        flops = 2.0 * math.prod(shapes[-2]) * shapes[-1][-1]
    elif name.startswith("convolution") and len(shapes) >= 2:
        images, weights = (shapes[1], shapes[2]) if "backward" in name else shapes[:2]
        flops = 2.0 * images[0] * math.prod(images[2:]) * math.prod(weights)
        flops *= 2 if "backward" in name else 1
    precision = "bf16-tc" if "c10::BFloat16" in event.dtypes() else "fp32"
    return DeviceKernel(f"invented::{name}", flops, moved, precision, 0.9)


class DeviceEvent:
    """An event of the device, or a launch on the host, as Kineto has them."""

    def __init__(self, name, start_ns, duration_ns, number, *, on_host=False):
        self._words = name, start_ns, duration_ns, number, on_host

    def name(self):
        return self._words[0]

    def start_ns(self):
        return self._words[1]

    def duration_ns(self):
        return self._words[2]

    def correlation_id(self):
        return self._words[3]

    def linked_correlation_id(self):
        return self._words[3] if self._words[4] else 0

    def device_type(self):
        from torch.autograd import DeviceType

        return DeviceType.CPU if self._words[4] else DeviceType.CUDA

    def is_user_annotation(self):
        return False

    def start_thread_id(self):
        return -1


class InventedGenerators:
    """The card's generators of random numbers, which a failed capture leaves unusable."""

    def __getitem__(self, index):
        return self

    def clone_state(self):
        return self

    def graphsafe_set_state(self, state):
        """Restore the state before the capture: calls draw from the CPU's generator."""


class InventedStream:
    """The only stream."""

    def __init__(self, *_, **__):
        """Nothing is kept."""

    def wait_stream(self, _):
        """There is one stream."""

    def synchronize(self):
        QUEUE.wait()


class InventedEvent:
    """A time stamp in the queue."""

    def __init__(self, **_):
        self.passed_at = None

    def record(self, *_):
        self.passed_at = max(QUEUE.idle_at, time.perf_counter()) + LAUNCH_S / 4

    def synchronize(self):
        QUEUE.wait()

    def elapsed_time(self, last):
        return (last.passed_at - self.passed_at) * 1e3


class InventedGraph:
    """A captured graph."""

    def __init__(self, **_):
        """Filled by the capture."""

    def raw_cuda_graph(self):
        return id(self)

    def replay(self):
        for kernel in GRAPHS[id(self)]:
            QUEUE.launch(kernel)
