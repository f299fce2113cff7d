"""oneDNN kernels, loops of our own and CPU probes (C++; see ``csrc/bind``)."""

import enum
from collections.abc import Mapping, Sequence
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

class PoolMode(enum.Enum):
    max = ...
    avg_include_padding = ...
    avg_exclude_padding = ...

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

def conv2d_candidates(
    pass_: Pass,
    precision: Precision,
    *,
    batch: int,
    groups: int,
    in_channels: int,
    in_height: int,
    in_width: int,
    out_channels: int,
    out_height: int,
    out_width: int,
    kernel_height: int,
    kernel_width: int,
    stride_height: int,
    stride_width: int,
    pad_top: int,
    pad_left: int,
    pad_bottom: int,
    pad_right: int,
    dilation_height: int,
    dilation_width: int,
) -> list[Candidate]: ...
def deconv2d_candidates(
    pass_: Pass,
    precision: Precision,
    *,
    batch: int,
    groups: int,
    in_channels: int,
    in_height: int,
    in_width: int,
    out_channels: int,
    out_height: int,
    out_width: int,
    kernel_height: int,
    kernel_width: int,
    stride_height: int,
    stride_width: int,
    pad_top: int,
    pad_left: int,
    pad_bottom: int,
    pad_right: int,
    dilation_height: int,
    dilation_width: int,
) -> list[Candidate]: ...
def gemm_candidates(
    pass_: Pass, precision: Precision, *, batch_count: int, m: int, k: int, n: int
) -> list[Candidate]: ...
def pool2d_candidates(
    pass_: Pass,
    precision: Precision,
    mode: PoolMode,
    *,
    batch: int,
    channels: int,
    in_height: int,
    in_width: int,
    out_height: int,
    out_width: int,
    kernel_height: int,
    kernel_width: int,
    stride_height: int,
    stride_width: int,
    pad_top: int,
    pad_left: int,
    pad_bottom: int,
    pad_right: int,
) -> list[Candidate]: ...
def pointwise_candidates(
    pass_: Pass,
    precision: Precision,
    op: str,
    *,
    batch: int,
    channels: int,
    height: int,
    width: int,
    thorough: bool = False,
    **parameters: float | tuple[int, ...],
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
    def sample(self, samples: int, inner: int = 1, untimed: int = 0) -> RawChunk: ...
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
def fma_peak(precision: str, cpus: Sequence[int], seconds: float = 0.1) -> ProbeResult: ...
def bandwidth(
    kind: str,
    bytes: int,  # noqa: A002 - what it counts
    cpus: Sequence[int],
    seconds: float = 0.05,
    streaming: bool = True,
) -> ProbeResult: ...
def isa() -> list[str]: ...
