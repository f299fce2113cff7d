"""oneDNN kernels, loops of our own and CPU probes (C++; see ``csrc/bind``)."""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

class Pass(enum.Enum):
    forward_inference = ...
    forward_training = ...
    backward_data = ...
    backward_weights = ...

class Precision(enum.Enum):
    fp32 = ...
    bf16 = ...
    fp16 = ...

class CacheState(enum.Enum):
    hot = ...
    weights_cold = ...
    all_cold = ...

class Candidate:
    """One way to compute a problem: an implementation, oneDNN's or ours, with its layouts."""

    @property
    def primitive(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def is_reference(self) -> bool: ...
    @property
    def scratchpad_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...

def candidates(
    kind: str,
    pass_: Pass,
    precision: Precision,
    fields: Mapping[str, object],
    thorough: bool = False,
) -> list[Candidate]: ...

class Arena:
    """The tensors of one layer, in every layout that its candidates need."""

    def __init__(self, inputs: Mapping[str, npt.NDArray[np.float32]]) -> None: ...
    def clear(self) -> None: ...
    @property
    def bytes(self) -> int: ...

class RawChunk(TypedDict):
    """Samples in seconds per execution, with the disturbance counters read around them."""

    seconds: npt.NDArray[np.float64]
    involuntary: npt.NDArray[np.int64]
    clock_hz: npt.NDArray[np.float64]
    run_delay_s: float
    steal_s: float
    wall_s: float
    canary: npt.NDArray[np.float64]

class Kernel:
    """A candidate with its memory, ready to be timed."""

    def __init__(
        self,
        candidate: Candidate,
        arena: Arena,
        cache: CacheState = ...,
        cold_bytes: int = 0,
        cpus: Sequence[int] = ...,
    ) -> None: ...
    def sample(
        self, samples: int, inner: int = 1, untimed: int = 0, canary: bool = False
    ) -> RawChunk: ...
    def run_poisoned(self) -> None: ...
    def output(self) -> npt.NDArray[np.float32]: ...
    def outputs(self) -> dict[str, npt.NDArray[np.float32]]: ...
    @property
    def output_is_view(self) -> bool: ...
    @property
    def candidate(self) -> Candidate: ...
    def reorder_seconds(self) -> dict[str, float]: ...
    @property
    def setup_seconds(self) -> float: ...
    @property
    def rotating_sets(self) -> int: ...

class Library(TypedDict):
    """The oneDNN that was loaded."""

    name: str
    version: str
    hash: str
    runtime: str
    isa: str
    threads: int | None

def library() -> Library: ...
def launch_seconds() -> float: ...

class ProbeResult:
    """Rates in FLOP/s or B/s and the clock they ran at."""

    @property
    def per_second(self) -> float: ...
    @property
    def median_per_second(self) -> float: ...
    @property
    def clock_hz(self) -> float: ...
    @property
    def median_clock_hz(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def kernel(self) -> str: ...

def clock_hz(iterations: int = 16384) -> float: ...
def canary(cpus: Sequence[int] = ()) -> float: ...
def fma_peak(precision: str, cpus: Sequence[int], seconds: float = 0.1) -> ProbeResult: ...
def bandwidth(
    kind: str,
    bytes: int,  # noqa: A002 - what it counts
    cpus: Sequence[int],
    seconds: float = 0.05,
    streaming: bool = True,
) -> ProbeResult: ...
def isa() -> list[str]: ...

class Layouts(enum.Enum):
    channels_last = ...
    blocked = ...
    chosen = ...

class Link:
    """One kernel of a step, by the names of the tensors that it works on."""

    def __init__(
        self,
        name: str,
        problem: str,
        kind: str,
        fields: Mapping[str, object],
        pass_: Pass,
        reads: Mapping[str, str],
        writes: Mapping[str, str],
        workspace: str = "",
        choice: str = "",
    ) -> None: ...
    @property
    def name(self) -> str: ...

class Choices:
    """What was found out about problems, for all chains that are made with it."""

    def __init__(self) -> None: ...

class RawStep(TypedDict):
    """A kernel of a chain, or a conversion of ``tensor``."""

    name: str
    tensor: str
    algorithm: str
    layout: str
    bytes: int

class RawLoad(TypedDict):
    """A tensor as it lies before the first execution."""

    tensor: str
    layout: str
    bytes: int
    plain: bool

class Chain:
    """The kernels of a whole step, run in order on each other's outputs."""

    def __init__(
        self,
        links: Sequence[Link],
        given: Mapping[str, npt.NDArray[np.float32]],
        kept: Collection[str],
        precision: Precision,
        layouts: Layouts,
        choices: Choices,
        cpus: Sequence[int] = ...,
    ) -> None: ...
    def load(self) -> None: ...
    def run(self) -> None: ...
    def sample(
        self, samples: int, inner: int = 1, untimed: int = 0, canary: bool = False
    ) -> RawChunk: ...
    def step_seconds(self) -> npt.NDArray[np.float64]: ...
    def tensor(self, name: str) -> npt.NDArray[np.float32]: ...
    @property
    def steps(self) -> list[RawStep]: ...
    @property
    def loads(self) -> list[RawLoad]: ...
    @property
    def memory(self) -> dict[str, int]: ...
