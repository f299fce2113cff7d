"""Recurrent layers: LSTM, GRU and plain cells, one or several layers, in one direction or both.

The input is a sequence ``(steps, batch, size)``; a cell passes its state from step to step. With
``x`` the source and ``h`` the state before a step (``src_iter`` before the first one), and a matrix
of ``weights``, one of ``weights_iter`` and a ``bias`` for each gate:

- ``lstm``: ``i, f, o = sigmoid(x W + h U + b)`` and ``g = tanh(x W + h U + b)``; ``c = f c + i g``
  (``src_iter_c`` before the first step) and ``h = o tanh(c)``. Gates are stored in the order ``i,
  f, g, o``. With a ``projection``, states have this size: ``h = o tanh(c) R``, with a matrix
  ``weights_projection`` (H. Sak et al., 2014). With a ``peephole``, three gates read ``c``, too,
  with one factor for each element of it, in ``weights_peephole``: ``i`` and ``f`` before it
  changes, and ``o`` after (F. Gers et al., 2002).
- ``gru``: ``u, r = sigmoid(x W + h U + b)``, ``o = tanh(x W + r (h U + b') + b)`` and ``h = u h +
  (1 - u) o``, with the reset gate after the product, as in cuDNN and PyTorch ("linear before
  reset"). Gates are stored in the order ``u, r, o``, followed by ``b'``.
- ``vanilla-gru``: the same with the reset gate before the product: ``o = tanh(x W + (r h) U + b)``,
  as it was published, and as Keras has it with ``reset_after=False``.
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
_GATES: Final = {"lstm": 4, "gru": 3, "vanilla-gru": 3, "rnn-tanh": 1, "rnn-relu": 1}


def _settle(values: dict[str, Any]) -> None:
    if "projection" in values and values["projection"] is None:
        values["projection"] = values["hidden"]
    if values.get("projected"):  # implied by a state of another size
        values["projected"] = values["projection"] == values["hidden"]
    width = values["directions"] * values.get("projection", values["hidden"])
    if values["layers"] > 1 and values["in_size"] != width:
        # The matrices of all layers are in one tensor.
        raise UsageError(
            f"in_size={values['in_size']}: later layers have {width}; nearest: {width}, or layers=1"
        )


def _merge(values: dict[str, Any]) -> None:
    """Replace benchdnn's size of the state before the first step; without others it is theirs."""
    state, projection = values.pop("state", None), values.get("projection")
    if state is not None:
        values.setdefault("in_size", state)
        values.setdefault("hidden", state)
    size = projection or values.get("hidden")
    if state not in (None, size):
        raise UnsupportedError(
            f"sic{state}: states have one size before and after a step; nearest: sic{size}"
        )


def _merge_unprojected(values: dict[str, Any]) -> None:
    size = values.pop("projection", None)
    _merge(values)
    hidden = values.get("hidden")
    if size not in (None, hidden):
        raise UnsupportedError(
            f"dic{size}: only an LSTM has a projection; nearest: dic{hidden}, or lstm:"
        )


def _trained(layer: Layer) -> tuple[str, ...]:
    """Return the roles of the weights that a layer has."""
    others = {"projection": layer.projects, "peephole": layer.peephole}
    names = (f"weights_{name}" for name, present in others.items() if present)
    return ("weights", "weights_iter", "bias", *names)


def _read(layer: Layer) -> tuple[str, ...]:
    """Return the roles of the tensors that the forward pass reads."""
    memory = ("src_iter_c",) if layer.op == "lstm" else ()
    return ("src", "src_iter", *memory, *_trained(layer))


def _shapes(layer: Layer) -> Shapes:
    """Return the shape of each tensor by role; matrices are stored as (in, gate, out)."""
    stack, gates = (layer.layers, layer.directions), layer.gates
    shapes = {
        "src": (layer.steps, layer.batch, layer.in_size),
        "src_iter": (*stack, layer.batch, layer.state),
        "src_iter_c": (*stack, layer.batch, layer.hidden),
        "weights": (*stack, layer.in_size, gates, layer.hidden),
        "weights_iter": (*stack, layer.state, gates, layer.hidden),
        "bias": (*stack, gates + (layer.op == "gru"), layer.hidden),
        "weights_projection": (*stack, layer.hidden, layer.state),
        "weights_peephole": (*stack, 3, layer.hidden),
        "dst": (layer.steps, layer.batch, layer.directions * layer.state),
    }
    return {role: shapes[role] for role in (*_read(layer), "dst")}


def _flops(layer: Layer) -> int:
    """Return the FLOPs of the products, two for a multiply-add.

    The elementwise operations of gates are not counted, as in DeepBench
    (baidu-research/DeepBench, ``code/nvidia/rnn_bench.cu``).
    """
    per_step = int(layer.gates * layer.hidden * (layer.in_size + layer.state))
    if layer.projects:
        per_step += layer.hidden * layer.state
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
        own = np.einsum("bi,igo->gbo", x, weights) + bias[:gates, None]
        if gates == 3:
            state = _gru(np, layer, own, state, weights_iter, bias)
        else:
            total = own + np.einsum("bi,igo->gbo", state, weights_iter)
            if memory is not None:
                state, memory = _lstm(np, layer, t, at, total, memory)
            else:
                state = np.tanh(total[0]) if layer.op == "rnn-tanh" else np.maximum(total[0], 0)
        states.append(state)
    return np.stack(states)


def _lstm(
    np: Any, layer: Layer, t: Any, at: tuple[int, int], gates: Any, memory: Any
) -> tuple[Any, Any]:
    """Return the state and the memory after a step."""
    i, f, g, o = gates
    if layer.peephole:
        factors = t.weights_peephole[at]
        i, f = i + factors[0] * memory, f + factors[1] * memory
    memory = np.sigmoid(f) * memory + np.sigmoid(i) * np.tanh(g)
    if layer.peephole:
        o = o + t.weights_peephole[at][2] * memory
    state = np.sigmoid(o) * np.tanh(memory)
    if layer.projects:
        state = np.einsum("bi,io->bo", state, t.weights_projection[at])
    return state, memory


def _gru(np: Any, layer: Layer, own: Any, state: Any, weights: Any, bias: Any) -> Any:
    """Return the state after a step; ``own`` are the products of the source."""
    update, reset = np.sigmoid(own[:2] + np.einsum("bi,igo->gbo", state, weights[:, :2]))
    if layer.op == "gru":
        last = reset * (np.einsum("bi,io->bo", state, weights[:, 2]) + bias[3])
    else:
        last = np.einsum("bi,io->bo", reset * state, weights[:, 2])
    return update * state + (1 - update) * np.tanh(own[2] + last)


def _recurrent(cell: str) -> Op:
    may_project = cell == "lstm"
    projection = Field(name="projection", spelling="dic", default=None)
    state = Field(name="state", spelling="sic", default=None)
    peephole, projected = (
        Field(name=name, spelling=name, type="flag", default=False, minimum=0)
        for name in ("peephole", "projected")
    )
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
            *((projection, projected, peephole) if may_project else ()),
        ),
        settle=_settle,
        other_fields=(state,) if may_project else (state, projection),
        merge=_merge if may_project else _merge_unprojected,
        shown=lambda layer, field: field.name == "projection" and layer.state != layer.hidden,
        shapes=_shapes,
        passes={
            "forward": Pass(reads=_read, writes=("dst",), flops=_flops),
            "backward-data": Pass(
                reads=lambda s: (*_read(s), "dst"), writes=_read, flops=lambda s: 2 * _flops(s)
            ),
        },
        reference=_run,
        native=lambda s: {"cell": cell, **s.fields},
        attributes={
            "gates": lambda _: _GATES[cell],
            "cell": lambda _: cell,
            "state": lambda s: s.value("projection") if may_project else s.hidden,
            "projects": lambda s: s.state != s.hidden or (may_project and s.projected),
            **({} if may_project else {"peephole": lambda _: False}),
        },
        multiply_adds=True,
        trained=("weights", "weights_iter", "bias", "weights_projection", "weights_peephole"),
        no_gpu="cuDNN's graph interface has no recurrent layers",
    )


RECURRENT_OPS: Final = tuple(map(_recurrent, _GATES))
