"""CUDA kernels, their sampler and GPU probes (C++ and CUDA; see ``csrc/bind``)."""

from collections.abc import Callable, Mapping
from typing import TypedDict

import numpy as np
import numpy.typing as npt

class BuiltWith(TypedDict):
    """The toolkit of this module's build."""

    cuda: str
    architectures: str
    compiler: str

class Library(TypedDict):
    """A library that was loaded at run time."""

    version: str
    path: str

def built_with() -> BuiltWith: ...
def device_count() -> int: ...
def device_facts(index: int) -> dict[str, object]: ...
def load_libraries(cudnn: str | None = None, cublaslt: str | None = None) -> None: ...
def libraries() -> dict[str, Library]: ...

class Device:
    """One GPU of this process."""

    def __init__(self, index: int) -> None: ...
    @property
    def facts(self) -> dict[str, object]: ...
    @property
    def free_bytes(self) -> int: ...
    def synchronize(self) -> None: ...

class Tensor(TypedDict):
    """A tensor of a plan; strides in elements."""

    role: str
    type: str
    dims: list[int]
    strides: list[int]
    use: str

class Plan:
    """One way to compute a problem on a GPU."""

    @property
    def primitive(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def library(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def accumulate(self) -> str: ...
    @property
    def tensor_cores(self) -> bool | None: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def runtime_compiled(self) -> bool: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    def build(self) -> float: ...

def plans(
    device: Device | None,
    kind: str,
    pass_: str,
    mode: str,
    fields: Mapping[str, object],
    *,
    layout: str = "best",
    workspace_limit: int = ...,
    fused: bool = False,
    sweep: bool = True,
    device_properties: str | None = None,
) -> list[Plan]: ...
def device_properties(device: Device) -> str: ...

class Arena:
    """The tensors of a layer in device memory, in all layouts of its plans."""

    def __init__(
        self,
        device: Device,
        inputs: Mapping[str, npt.NDArray[np.float32]],
        drawn: Mapping[str, tuple[int, int, int, int, float]] = ...,
    ) -> None: ...
    def clear(self) -> None: ...
    @property
    def bytes(self) -> int: ...

class RawChunk(TypedDict):
    """Samples in seconds per execution, and the SM clock during them."""

    seconds: npt.NDArray[np.float64]
    clock_hz: npt.NDArray[np.float64]
    enqueue_s: npt.NDArray[np.float64]
    wall_s: float
    gate_timeouts: int

class LaunchTimes(TypedDict):
    """Seconds per execution by several clocks; ``wall_s`` is the host's, including the wait.

    ``single_s`` is one execution between events, ``event_s`` several without pauses; ``graph_s`` is
    NaN if the plan cannot be captured into a graph.
    """

    single_s: float
    event_s: float
    graph_s: float
    host_s: float
    wall_s: float

class Steady(TypedDict):
    """Executions without pauses."""

    executions: int
    seconds: float

class GraphKernel(TypedDict):
    """A kernel that a library launches; ``registers`` are per thread."""

    name: str
    grid: list[int]
    block: list[int]
    shared_bytes: int
    registers: int

class Comparison(TypedDict):
    """The largest error of all elements, compared with the float64 reference."""

    max_error: float
    where: list[int]
    got: float
    expected: float
    unwritten: int
    infinite: int
    elements: int
    terms: int

class Reference:
    """A layer's float64 reference on the device."""

class Kernel:
    """A plan with its memory, ready to be timed."""

    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        cache: str = "hot",
        timing: str = "events",
        cold_bytes: int = 0,
    ) -> None: ...
    def sample(self, samples: int, inner: int = 1, untimed: int = 0) -> RawChunk: ...
    def run_poisoned(self) -> None: ...
    def output(self) -> npt.NDArray[np.float32]: ...
    def outputs(self) -> dict[str, npt.NDArray[np.float32]]: ...
    def verify(self, reference: Reference, arena: Arena) -> Comparison: ...
    def launch_times(self, repetitions: int = 20) -> LaunchTimes: ...
    def run_for(self, seconds: float) -> Steady: ...
    def kernels(self) -> list[GraphKernel]: ...
    def run_marked(self, name: str) -> None: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def build_seconds(self) -> float: ...
    @property
    def rotating_sets(self) -> int: ...

class ForeignKernel:
    """A framework's enqueued work or captured graph, timed like our own kernels."""

    def __init__(
        self,
        device: Device,
        enqueue: Callable[[int], None],
        launches: int = 1,
        cache: str = "hot",
    ) -> None: ...
    @staticmethod
    def of_graph(device: Device, graph: int, executions: int = 1) -> ForeignKernel: ...
    def sample(self, samples: int, inner: int = 1, untimed: int = 0) -> RawChunk: ...
    def launch_times(self, repetitions: int = 20) -> LaunchTimes: ...
    def run_for(self, seconds: float) -> Steady: ...
    def kernels(self) -> list[GraphKernel]: ...

def push_range(name: str) -> None: ...
def pop_range() -> None: ...
def reference(
    kind: str, pass_: str, fields: Mapping[str, object], *, fused: bool = False
) -> Reference | None: ...

class Reading(TypedDict):
    """A probe's rates in FLOP/s or B/s, and the clock during them."""

    per_second: float
    median_per_second: float
    clock_hz: float
    median_clock_hz: float
    seconds: float
    rounds: int
    kernel: str

class Launch(TypedDict):
    """The cost of starting an empty kernel, in seconds."""

    single_kernel_s: float
    empty_kernel_s: float
    host_s: float
    graph_node_s: float

def fma_peak(device: Device, precision: str, seconds: float = 0.1) -> Reading: ...
def bandwidth(
    device: Device,
    kind: str,
    bytes: int,  # noqa: A002 - what it counts
    seconds: float = 0.1,
) -> Reading: ...
def launch_seconds(device: Device) -> Launch: ...
