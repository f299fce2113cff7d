"""The nodes of an ONNX step run in their order, each in a session of its own, on shared memory.

Each node reads what earlier ones have written. Memory that nobody reads any more is written again,
as within a step; what only gives a tensor another shape is a view. What stays is starting each
session from Python, which takes longer than onnxruntime takes to go on to the next node. It is
measured, and where it is a large part of the chain there is none: its time would not be that of the
nodes.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from pydlbench.backends.onnxruntime.recording import GRAPHS, recorded
from pydlbench.backends.onnxruntime.replay import ALIASES, ONNX, one_file
from pydlbench.backends.onnxruntime.step import OnnxModel
from pydlbench.backends.steps.operators import OperatorsKernel
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import Check
from pydlbench.timing.statistics import median
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
    from pydlbench.backends.onnxruntime.recording import Recording
    from pydlbench.records.step import StepSpec

#: Of the chain's time, what starting its sessions may take at the most.
_MOST: Final = 0.1
#: How often the two are run for that, after a run that is not counted.
_RUNS: Final = 15
#: Sessions that compute nothing, for the cost of starting one.
_LENGTH: Final = 64
#: Tensors begin on a cache line, as onnxruntime's own do.
_ALIGNMENT: Final = 64
# Results are those of the same kernels on the same operands; sums that threads share may be added
# in another order. So many roundings of the largest element.
_ROUNDINGS: Final = 1 << 10
_HOW: Final = f"dispatch: {_LENGTH} sessions of a node on one element, one after another"


class NodeChain:
    """The nodes of a step as an operator; see ``backends.steps.operators.TimedOperator``.

    Args:
        recording: of the step.
        feeds: its inputs.
        backend: has the settings of sessions.

    Raises:
        UnsupportedError: a node has a graph of its own, or results of unknown shape or type.
    """

    def __init__(
        self, recording: Recording, feeds: Mapping[str, NDArray[Any]], backend: OnnxruntimeBackend
    ) -> None:
        self._cpu = backend.cpus[0]
        #: What the nodes read and write, by name; memory is shared by those that follow each other.
        self.values: dict[str, NDArray[Any]] = dict(feeds)
        self._recording, self._backend = recording, backend
        self._constants = _constants(recording)
        self._calls: list[tuple[Any, Any]] = []
        memory = _Memory(recording)
        for number, node in enumerate(recording.graph.nodes):
            self._add(node, recording.graph.names[number], memory)
            memory.pass_by(number)

    @property
    def sessions(self) -> int:
        """How many are started."""
        return len(self._calls)

    def run(self) -> float:
        """Run all nodes once and return the seconds that they take."""
        return _run(self._calls, self._cpu)

    def _add(self, node: Any, name: str, memory: _Memory) -> None:
        """Make a node ready, and memory for what it writes."""
        if any(one.type in GRAPHS for one in node.attribute):
            raise UnsupportedError(f"{name}: {node.op_type} has a graph of its own")
        wrote = [one for one in node.output if one]
        source = node.input[0] if node.input else ""
        view = node.op_type in ALIASES and source in self.values
        for one in wrote:
            dtype, shape = self._recording.written.get(one, ("", ()))
            if not dtype:
                raise UnsupportedError(f"{name}: the profile tells no shape of {one}")
            if view:
                self.values[one] = self.values[source].reshape(shape)
                memory.share(one, source)
            else:
                self.values[one] = memory.take(one, dtype, shape)
        if view:
            return
        read = [one for one in dict.fromkeys(node.input) if one]
        constants = {one: self._constants[one] for one in read if one in self._constants}
        plain = {one: self.values[one] for one in read if one not in constants}
        file = one_file([node], plain, constants, wrote, self._recording.graph.versions)
        session = onnxruntime.InferenceSession(
            file.SerializeToString(),
            self._backend.options("unoptimized"),
            providers=["CPUExecutionProvider"],
        )
        results = {one: self.values[one] for one in wrote}
        self._calls.append((session, _bound(session, plain, results)))


def _bound(
    session: Any, read: Mapping[str, NDArray[Any]], wrote: Mapping[str, NDArray[Any]]
) -> Any:
    """Return what lets a session read and write arrays where they lie."""
    binding = session.io_binding()
    for name, one in read.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(one))
    for name, one in wrote.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(one))
    return binding


def _run(calls: Sequence[tuple[Any, Any]], cpu: int) -> float:
    """Run sessions in their order and return the seconds that they take."""
    with pinned(cpu):
        start = time.perf_counter()
        for session, binding in calls:
            session.run_with_iobinding(binding)
        return time.perf_counter() - start


class _Memory:
    """Blocks for what nodes write; one that nobody reads any more is taken again.

    Args:
        recording: of the step.
    """

    def __init__(self, recording: Recording) -> None:
        graph = recording.graph
        self._last: dict[str, int] = {}
        for number, node in enumerate(graph.nodes):
            self._last |= dict.fromkeys([*node.input, *node.output], number)
        self._last |= {one.name: len(graph.nodes) for one in graph.model.graph.output}
        self._blocks: dict[str, NDArray[np.uint8]] = {}
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._owners: dict[str, str] = {}

    def take(self, name: str, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
        """Return memory for what a node writes.

        Raises:
            UnsupportedError: NumPy has no such type.
        """
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise UnsupportedError(f"{name}: NumPy has no {dtype}") from error
        size = math.prod(shape) * kind.itemsize
        free = self._free.get(size)
        block = free.pop() if free else _aligned(size)
        self._blocks[name] = block
        found: NDArray[Any] = block.view(kind).reshape(shape)
        return found

    def share(self, name: str, source: str) -> None:
        """Keep the memory of what a tensor is a view of as long as that tensor is read."""
        owner = self._owners[name] = self._owners.get(source, source)
        self._last[owner] = max(self._last[owner], self._last[name])

    def pass_by(self, number: int) -> None:
        """Free what no node behind this one reads."""
        for name in [one for one in self._blocks if self._last[one] <= number]:
            block = self._blocks.pop(name)
            self._free.setdefault(block.size, []).append(block)


def _aligned(size: int) -> NDArray[np.uint8]:
    block = np.empty(size + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + size]


def _constants(recording: Recording) -> dict[str, NDArray[Any]]:
    folder = str(recording.folder)
    return {
        name: numpy_helper.to_array(one, folder) for name, one in recording.graph.constants.items()
    }


# -----------------------------------------------------------------------------
# Whether the chain computes what the step computes, and what starting its sessions takes.


def _check(chain: NodeChain, expected: Mapping[str, Any]) -> Check:
    """Compare what the chain has computed with what the step has.

    Raises:
        PrimitiveError: they differ by more than the order of sums can explain.
    """
    wrong = []
    for name, one in expected.items():
        found = chain.values.get(name)
        if found is None or found.shape != one.shape or not _close(found, one):
            wrong.append(name)
    if wrong:
        raise PrimitiveError(f"the chain does not compute what the step does: {', '.join(wrong)}")
    return Check(name="results", status="ok", detail=f"{len(expected)} of {len(expected)} alike")


def _close(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    if expected.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    allowed = np.finfo(expected.dtype).eps * _ROUNDINGS * np.abs(expected).max(initial=0.0)
    return bool(np.all(np.abs(found - expected) <= allowed))


def _dispatch_s(backend: OnnxruntimeBackend) -> float:
    """Return what a session costs whose node computes nothing, in seconds."""
    one = np.ones(1, np.float32)
    node = helper.make_node("Relu", ["x"], ["y"])
    file = one_file([node], {"x": one}, {}, ["y"], {"": ONNX}).SerializeToString()
    calls = []
    for _ in range(_LENGTH):
        session = onnxruntime.InferenceSession(
            file, backend.options("unoptimized"), providers=["CPUExecutionProvider"]
        )
        calls.append((session, _bound(session, {"x": one}, {"y": np.ones(1, np.float32)})))
    return median([_run(calls, backend.cpus[0]) for _ in range(_RUNS)]) / _LENGTH


def prepare_chain(backend: OnnxruntimeBackend, case: StepSpec) -> OperatorsKernel:
    """Make the chain of a step ready; see ``operations.prepare_chain``.

    Raises:
        UnsupportedError: starting its sessions would be a large part of it.
    """
    made = OnnxModel(backend, case)
    with made, recorded(made) as recording:
        chain = NodeChain(recording, made.feeds, backend)
        chain.run()
        names = [one.name for one in made.session.get_outputs()]
        check = _check(chain, dict(zip(names, made.run(), strict=True)))
    dispatch_s = _dispatch_s(backend)
    chain_s = median([chain.run() for _ in range(_RUNS)])
    calling_s = dispatch_s * chain.sessions
    if calling_s > _MOST * chain_s:
        raise UnsupportedError(
            f"starting its {chain.sessions} nodes one by one takes {format_seconds(calling_s)} of "
            f"the {format_seconds(chain_s)} that they take in their order "
            f"({percent(calling_s / chain_s)}), which onnxruntime does not need: it would not be "
            "the time of the nodes"
        )
    facts = OperatorsFacts(
        names=("chain",),
        dispatch_s=dispatch_s,
        how=f"{chain.sessions} sessions; {_HOW}",
        calls=recording.calls,
        checks=(check,),
        allocates=False,
        batch=made.batch,
    )
    return OperatorsKernel([chain], facts, backend.cpus)
