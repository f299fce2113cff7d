"""Inputs and results of a step of the catalogue, the same in every framework.

Images, labels and weights are seeded; weights and results are known by their names.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by
from pydlbench.models.graph import GraphNode, Init, Model, buffers, trained_tensors
from pydlbench.verification.inputs import UniformTensor, uniform_key

#: Folder of the weights and inputs that a saved step has run with, and prefixes of their names.
VALUES: Final = "values"
WEIGHTS: Final = "weights/"
INPUTS: Final = "inputs/"


def load_values(path: str) -> NDArray[Any]:
    """Return the values of a file: NumPy's ``.npy``, or ONNX's ``.pb``.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, allow_pickle=False))
        import onnx
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(onnx.load_tensor(path)))
    except Exception as error:  # protobuf's errors have no common class
        raise UsageError(f"--input {path}: {error}; nearest: a file of numpy.save") from error


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch.

    Attributes:
        images: float32 array, NCHW, uniform in [-1, 1).
        labels: int64 array, one label per image (per pixel if the output is a map), below the
            model's classes; None if the loss takes none.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None


def make_batch(model: Model, seed: int = 0) -> Batch:
    """Return a minibatch for a model.

    Args:
        model: model with batch, image size and classes.
        seed: seed of the random numbers, at least 0.
    """
    shape = model.batch, *model.image
    images = UniformTensor(shape, uniform_key(seed, 1), "fp32").array()
    labels = None
    if model.loss.kind == "cross-entropy":
        classes = model.output.shape[0]
        # Some scripts have more outputs than classes.
        size = model.batch, *model.output.shape[1:]
        drawn = np.random.Generator(np.random.SFC64([seed, 1])).integers(
            model.classes or classes, size=size
        )
        labels = drawn.astype(np.int64)
    return Batch(images, labels)


def save_results(folder: Path, results: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write output and gradients as numbered files, and their names in that order.

    Args:
        folder: where to write; may exist already.
        results: pairs of name and array; each is dropped before the next one is computed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, (name, values) in enumerate(results):
        np.save(folder / f"{number}.npy", values)
        names.append(name)
    (folder / "names.txt").write_text("\n".join(names))


def saved_results(folder: Path) -> dict[str, Path]:
    """Return the files of :func:`save_results` by name; empty without a folder."""
    if not folder.exists():
        return {}
    names = (folder / "names.txt").read_text().splitlines()
    return {name: folder / f"{number}.npy" for number, name in enumerate(names)}


def matching_tensors(
    own: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Return which tensors of two models correspond: name in ``own`` -> name in ``others``.

    They do if name and shape are the same. The others correspond in their order, where both models
    have as many of a shape: a rewritten model often has other names.

    Args:
        own: shapes by name.
        others: shapes by name, of the other model.
    """
    pairs = {name: name for name, shape in own.items() if others.get(name) == shape}
    unnamed = group_by([name for name in own if name not in pairs], own.__getitem__)
    free = group_by([name for name in others if name not in pairs], others.__getitem__)
    for shape, names in unnamed.items():
        if len(free.get(shape, ())) == len(names):
            pairs |= zip(names, free[shape], strict=True)
    return pairs


# Maximum number of threads that draw a model's weights.
_MAX_THREADS: Final = 4
# Number of standard deviations at which a truncated normal distribution is cut off.
_CUTOFF = 2.0


def weight_shapes(node: GraphNode) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all of a node's tensors by role, running statistics last."""
    return {**trained_tensors(node), **buffers(node)}


def trained(model: Model) -> list[str]:
    """Return the names of all trained tensors, in the order of the nodes."""
    return [f"{node.name}/{role}" for node in model for role in trained_tensors(node)]


def make_weights(
    model: Model, seed: int = 0, disturbance: float = 0.0
) -> dict[str, NDArray[np.float32]]:
    """Return all tensors of a model, float32, by ``<node>/<role>`` (see :func:`weight_shapes`).

    The values of a tensor depend on the seed and its name only.

    Args:
        model: the graph.
        seed: seed of the random numbers, at least 0.
        disturbance: maximum relative change of every element; size and sign are random.
    """
    tensors, filled = {}, []
    with ThreadPoolExecutor(_MAX_THREADS) as threads:
        for name, shape, init in _initials(model):
            # Memory is that of this thread: the allocator keeps memory of others apart.
            tensors[name] = np.empty(shape, np.float32)
            filled.append(threads.submit(_fill, tensors[name], init, name, seed))
    for filling in filled:
        filling.result()
    if disturbance:
        stream = np.random.default_rng(seed)
        for array in tensors.values():
            change = 1 + disturbance * stream.uniform(-1, 1, array.shape)
            np.multiply(array, change.astype(np.float32), out=array)
    return tensors


def _initials(model: Model) -> Iterator[tuple[str, tuple[int, ...], Init | float]]:
    for node in model:
        for role, shape in weight_shapes(node).items():
            name = f"{node.name}/{role}"
            if node.op == "batchnorm":
                yield name, shape, 1.0 if role in ("weights", "running_variance") else 0.0
            else:
                yield name, shape, node.weights_init if role == "weights" else node.bias_init


def _fill(values: NDArray[np.float32], init: Init | float, name: str, seed: int) -> None:
    if isinstance(init, float) or init.kind == "constant":
        values.fill(init if isinstance(init, float) else init.value)
        return
    stream = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    stream.standard_normal(dtype=np.float32, out=values)
    if init.kind == "he":
        # Convolutions: everything but the first dimension; products: the first one.
        inputs = math.prod(values.shape[1:]) if values.ndim == 4 else len(values)
        values *= np.float32(math.sqrt(2 / inputs))
        return
    flat = values.reshape(-1)
    # Values outside are drawn again, as truncated_normal does.
    outside = np.flatnonzero(np.abs(flat) > _CUTOFF)
    while outside.size:
        flat[outside] = stream.standard_normal(outside.size, dtype=np.float32)
        outside = outside[np.abs(flat[outside]) > _CUTOFF]
    values *= np.float32(init.value)
