"""Recurrent layers: LSTM, GRU and plain cells, one or several layers, in one direction or both.

The input is a sequence ``(steps, batch, size)``; a cell passes its state from step to step. With
``x`` the source and ``h`` the state before a step (``src_iter`` before the first one), and a matrix
of ``weights``, one of ``weights_iter`` and a ``bias`` for each gate:

- ``lstm``: ``i, f, o = sigmoid(x W + h U + b)`` and ``g = tanh(x W + h U + b)``; ``c = f c + i g``
  (``src_iter_c`` before the first step) and ``h = o tanh(c)``. Gates are stored in the order ``i,
  f, g, o``.
- ``gru``: ``u, r = sigmoid(x W + h U + b)``, ``o = tanh(x W + r (h U + b') + b)`` and ``h = u h +
  (1 - u) o``, with the reset gate after the product, as in cuDNN and PyTorch ("linear before
  reset"). Gates are stored in the order ``u, r, o``, followed by ``b'``.
- ``rnn-tanh`` and ``rnn-relu``: ``h = tanh(x W + h U + b)``, or the positive part.

With two directions, the second half of the result's columns processes the sequence from its end.
Each further layer reads the result of the previous one.

The result is the states of the last layer. backward-data computes the gradients of all inputs in
one pass, as all libraries do. The forward pass keeps data for it in the library's own format.

Sources: S. Hochreiter and J. Schmidhuber, "Long short-term memory", 1997, with the forget gate of
F. Gers et al., 2000; K. Cho et al., "Learning phrase representations using RNN encoder-decoder",
2014; oneDNN's developer guide, "RNN".
"""

from typing import Any, Final

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.ops.op import Field, Layer, Op, Pass, Shapes

#: Products with the source (and with the state) in each step of a cell.
_GATES: Final = {"lstm": 4, "gru": 3, "rnn-tanh": 1, "rnn-relu": 1}
_TRAINED: Final = ("weights", "weights_iter", "bias")


def _settle(values: dict[str, Any]) -> None:
    width = values["directions"] * values["hidden"]
    if values["layers"] > 1 and values["in_size"] != width:
        # The matrices of all layers are in one tensor.
        raise UsageError(
            f"in_size={values['in_size']}: later layers have {width}; nearest: {width}, or layers=1"
        )


def _merge(values: dict[str, Any]) -> None:
    """Replace benchdnn's sizes of the states before the first and after the last step."""
    before, after = values.pop("state", None), values.pop("last_state", None)
    if before is not None:
        values.setdefault("in_size", before)
        values.setdefault("hidden", before)
    hidden = values.get("hidden")
    for spelling, size in (("sic", before), ("dic", after)):
        if size not in (None, hidden):
            raise UnsupportedError(
                f"{spelling}{size}: there is no projection; nearest: {spelling}{hidden}"
            )


def _shapes(layer: Layer) -> Shapes:
    """Return the shape of each tensor by role; matrices are stored as (in, gate, out)."""
    stack, gates = (layer.layers, layer.directions), layer.gates
    state = (*stack, layer.batch, layer.hidden)
    return {
        "src": (layer.steps, layer.batch, layer.in_size),
        "src_iter": state,
        **({"src_iter_c": state} if layer.op == "lstm" else {}),
        "weights": (*stack, layer.in_size, gates, layer.hidden),
        "weights_iter": (*stack, layer.hidden, gates, layer.hidden),
        "bias": (*stack, gates + (layer.op == "gru"), layer.hidden),
        "dst": (layer.steps, layer.batch, layer.directions * layer.hidden),
    }


def _flops(layer: Layer) -> int:
    """Return the FLOPs of the products, two for a multiply-add.

    The elementwise operations of gates are not counted, as in DeepBench
    (baidu-research/DeepBench, ``code/nvidia/rnn_bench.cu``).
    """
    per_step = int(layer.gates * layer.hidden * (layer.in_size + layer.hidden))
    return 2 * int(layer.layers * layer.directions * layer.steps) * layer.batch * per_step


def _run(np: Any, layer: Layer, t: Any) -> Any:
    values = t.src
    for level in range(layer.layers):
        halves = []
        for direction in range(layer.directions):
            steps = values[::-1] if direction else values
            states = _sequence(np, layer, t, (level, direction), steps)
            halves.append(states[::-1] if direction else states)
        values = np.concatenate(halves, -1)
    return values


def _sequence(np: Any, layer: Layer, t: Any, at: tuple[int, int], steps: Any) -> Any:
    """Return the states of one layer in one direction."""
    state, bias, gates = t.src_iter[at], t.bias[at], layer.gates
    weights, weights_iter = t.weights[at], t.weights_iter[at]
    memory = t.src_iter_c[at] if layer.op == "lstm" else None
    states = []
    for x in steps:
        from_source = np.einsum("bi,igo->gbo", x, weights) + bias[:gates, None]
        from_state = np.einsum("bi,igo->gbo", state, weights_iter)
        if memory is not None:
            i, f, g, o = from_source + from_state
            memory = np.sigmoid(f) * memory + np.sigmoid(i) * np.tanh(g)
            state = np.sigmoid(o) * np.tanh(memory)
        elif gates == 1:
            (total,) = from_source + from_state
            state = np.tanh(total) if layer.op == "rnn-tanh" else np.maximum(total, 0)
        else:
            update, reset = np.sigmoid(from_source[:2] + from_state[:2])
            new = np.tanh(from_source[2] + reset * (from_state[2] + bias[3]))
            state = update * state + (1 - update) * new
        states.append(state)
    return np.stack(states)


def _recurrent(cell: str) -> Op:
    read = ("src", "src_iter", *(("src_iter_c",) if cell == "lstm" else ()), *_TRAINED)
    return Op(
        name=cell,
        key=cell,
        kind="recurrent",
        prefix=f"{cell}:",
        fields=(
            Field(name="layers", spelling="l", default=1, shown=True),
            Field(name="directions", spelling="d", default=1, maximum=2),
            Field(name="steps", spelling="t"),
            Field(name="batch", spelling="mb", default=1, shown=True),
            Field(name="in_size", spelling="slc"),
            Field(name="hidden", spelling="dhc"),
        ),
        settle=_settle,
        other_fields=(
            Field(name="state", spelling="sic", default=None),
            Field(name="last_state", spelling="dic", default=None),
        ),
        merge=_merge,
        shapes=_shapes,
        passes={
            "forward": Pass(reads=read, writes=("dst",), flops=_flops),
            "backward-data": Pass(reads=(*read, "dst"), writes=read, flops=lambda s: 2 * _flops(s)),
        },
        reference=_run,
        native=lambda s: {"cell": cell, **s.fields},
        attributes={"gates": lambda _: _GATES[cell], "cell": lambda _: cell},
        multiply_adds=True,
        trained=_TRAINED,
        no_gpu="cuDNN's graph interface has no recurrent layers",
    )


RECURRENT_OPS: Final = tuple(map(_recurrent, _GATES))
