"""User models in TensorFlow: built by the user's code.

A step is one ``tf.function``, as in a script's training loop: forward, loss, gradients and
optimizer, on inputs that are on the device already.
"""

import contextlib
import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
from keras.src.backend.common import global_state  # no public name has the numbers of layers

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.steps.inputs import INPUTS, VALUES, saved_results
from pydlbench.backends.steps.network import LOSS, OPTIMIZER
from pydlbench.backends.steps.user_code import load_user_object, user_code_errors
from pydlbench.backends.steps.user_model import MU, RATE, Tensors, UserModel
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.steps.step import TracedModel
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.words import AS_BUILT


def _on_host(tensor: Any) -> Any:
    """Return a tensor's values, in float32 if it is floating-point."""
    values = tf.convert_to_tensor(tensor)
    return (tf.cast(values, tf.float32) if values.dtype.is_floating else values).numpy()


def _assign(tensor: Any, values: Any) -> None:
    """Assign values to a variable; inputs are constants and keep theirs."""
    if hasattr(tensor, "assign"):
        tensor.assign(tf.cast(values, tensor.dtype))


class UserTensorflowModel(UserModel, TracedModel):
    """A user's model with its inputs, loss and optimizer.

    The checks are that all results of the step and all trained weights are finite.

    Args:
        backend: backend of the worker; not used.
        spec: definition of the step, with a user's model.

    Raises:
        UsageError: the name is no callable, it returns no model, or inputs or a loss are missing.
        UnsupportedError: TensorFlow has no such precision on this device, or a model of this kind
            has a fixed precision.
        ModelError: the user's code has raised.
    """

    tensors = Tensors(
        find=lambda value: filter(tf.is_tensor, tf.nest.flatten(value)),
        make=tf.cast,
        dtype=lambda tensor: str(tf.as_dtype(tensor.dtype).name),
        is_finite=lambda x: bool(tf.reduce_all(tf.math.is_finite(tf.cast(x, tf.float32)))),
        host=_on_host,
        assign=_assign,
    )

    def __init__(self, backend: FrameworkBackend, spec: StepSpec) -> None:  # noqa: ARG002 - as its base class
        if spec.layout != AS_BUILT:
            raise UnsupportedError(
                f"{spec.model}: --layout {spec.layout}: a model in TensorFlow says its layout "
                "itself; nearest: leave it out"
            )
        super().__init__(spec)
        keras.utils.set_random_seed(spec.seed)
        with user_code_errors(spec.model):
            with self._policy(), _layer_numbers_reset(spec.model):
                given = self.call()
            if tf.config.functions_run_eagerly():
                tf.config.run_functions_eagerly(False)
                self.notes.append("its code asks for functions to run eagerly; the step is a graph")
            self._check_policy()
            with tf.device(self.device):
                self.arguments, self.keywords = self._placed(*self.given(given))
            self._modes = self._training_words()
            self.output = self._first_step()
        self._optimizer = self._made_optimizer()
        self._function = self.make_function(self.body)

    def guards(self) -> Iterable[contextlib.AbstractContextManager[Any]]:
        """Return the context for errors of the user's code, and set the switch for TF32."""
        self._precision.apply()
        return [user_code_errors(self.spec.model)]

    def run(self) -> Any:
        """Run the step once; return what the phase computes of output, gradients and loss."""
        return self._function(*self.operands())

    def results(self, result: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return the results of the step, and the trained weights."""
        trained = {"weights": self.weights} if self.spec.phase == "training" else {}
        flat = {group: tf.nest.flatten(values) for group, values in {**result, **trained}.items()}
        named = {
            group: {f"tensor {number}": tensor for number, tensor in enumerate(tensors, start=1)}
            for group, tensors in flat.items()
        }
        if self.weights and "gradients" in flat:
            names = list(self.named_weights())[: len(self.weights)]
            named["gradients"] = dict(zip(names, flat["gradients"], strict=True))
        return named

    def named_weights(self) -> Mapping[str, Any]:
        """Return weights and running statistics by their paths in the model."""
        others = getattr(self.model, "non_trainable_weights", ())
        return {getattr(x, "path", x.name): x for x in (*self.weights, *others)}

    def exchange(self, preparation: StepPreparation) -> None:
        """Take the inputs of another step, which are constants here, then exchange the rest."""
        files = saved_results(Path(preparation.load) / VALUES) if preparation.load else {}
        given = tf.nest.flatten([value for _, value in self.inputs()])
        taken = {}
        for number, tensor in enumerate(given):
            path = files.get(f"{INPUTS}{number}")
            if path is not None and (array := np.load(path)).shape == tuple(tensor.shape):
                with tf.device(self.device):
                    taken[id(tensor)] = tf.cast(array, tensor.dtype)
        self.arguments, self.keywords = tf.nest.map_structure(
            lambda tensor: taken.get(id(tensor), tensor), (self.arguments, self.keywords)
        )
        super().exchange(preparation)

    def facts(self, result: Any) -> dict[str, Any]:  # noqa: ARG002 - as its base class
        """Return facts on the model, from the first output, as not all steps return an output."""
        return super().facts(self.tensors.floating(self.output))

    @property
    def scopes(self) -> dict[str, str]:
        """The names of the layers, which are also the scopes of their nodes."""
        return {layer: layer for layer in _layers(self.model)}

    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Yield the inputs as (name, tensor) pairs, as ``--input`` names them.

        A functional Keras model has one dict or list of inputs, which is unpacked.
        """
        for name, value in super().inputs():
            if name is None and isinstance(value, Mapping):
                yield from value.items()
            else:
                yield from (
                    (name, tensor) for tensor in (value if isinstance(value, list) else [value])
                )

    # -------------------------------------------------------------------------
    # Building the step.

    @contextlib.contextmanager
    def _policy(self) -> Iterator[None]:
        """Set Keras's policy for layers that are created within: the case's precision."""
        if not self._is_narrow:
            yield
            return
        if self.spec.cast == "whole":
            raise UnsupportedError(
                f"{self.spec.model}: --cast whole: Keras keeps weights in float32; nearest: "
                "--cast mixed"
            )
        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(f"mixed_{self._precision.dtype}")
        try:
            yield
        finally:
            keras.mixed_precision.set_dtype_policy(before)

    @property
    def _is_narrow(self) -> bool:
        return self._precision.dtype != "float32"

    def _check_policy(self) -> None:
        """Check that a layer computes in the case's precision."""
        types = {getattr(layer, "compute_dtype", None) for layer in _flat(self.model)}
        if self._is_narrow and self._precision.dtype not in types:
            raise UnsupportedError(
                f"{self.spec.model}: {type(self.model).__name__} has no layer of Keras that was "
                f"made with the policy mixed_{self._precision.dtype}; nearest: --precision fp32"
            )

    def likely_input(self) -> str:
        """Return a suggestion for ``--input``."""
        inputs = getattr(self.model, "inputs", None)
        known = (
            (sizes, dtype)
            for layer in _flat(self.model)
            for kind, sizes, dtype in _LIKELY_INPUTS
            if isinstance(layer, kind)
        )
        shape: tuple[int, ...]
        shape, dtype = next(known, ((224, 224, 3), ""))
        if inputs:
            shape = tuple(size or 32 for size in inputs[0].shape[1:])
            whole = "" if "float" in str(inputs[0].dtype) else f":{inputs[0].dtype}"
            dtype = dtype or whole
        return f"{'x'.join(map(str, (8, *shape)))}{dtype}"

    def indexed_rows(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Mapping[int | str, int]:
        """Return the rows of the model's smallest table for each input, which may be an index."""
        tables = [layer for layer in _flat(self.model) if isinstance(layer, keras.layers.Embedding)]
        rows = min((int(table.input_dim) for table in tables), default=0)
        places = (*range(len(arguments)), *keywords)
        return dict.fromkeys(places, rows) if rows else {}

    def _placed(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs on the device; functional Keras models are called with one object."""
        if self.user_spec.inputs and arguments and keywords:
            raise UsageError(
                f"{self.spec.model}: inputs by place and by name; nearest: a name for each --input"
            )
        arguments, keywords = tf.nest.map_structure(
            lambda value: tf.identity(tf.convert_to_tensor(value)), (arguments, keywords)
        )
        if getattr(self.model, "inputs", None):
            together = keywords or list(arguments)
            return (arguments[0] if len(arguments) == 1 else together,), {}
        return arguments, keywords

    def _training_words(self) -> dict[str, bool]:
        """Return the keyword ``training``, if the model takes it."""
        if isinstance(self.model, keras.Layer):
            return {"training": self.trains}
        called = getattr(self.model, "python_function", None) or self._called()
        known = "training" in inspect.signature(called).parameters
        if not known and self.user_spec.train is not None:
            raise UsageError(
                f"{self.spec.model}: {type(self.model).__name__} takes no argument training; "
                "nearest: leave --train-mode and --eval-mode out"
            )
        return {"training": self.trains} if known else {}

    def _called(self) -> Callable[..., Any]:
        """Return the model as a function.

        Raises:
            UsageError: it cannot be called.
        """
        if not callable(self.model):
            raise UsageError(
                f"{self.spec.model}: {type(self.model).__name__} has no __call__; nearest: return "
                "a tf.function of it"
            )
        called: Callable[..., Any] = self.model
        return called

    def _forward(self, operands: Sequence[Any]) -> Any:
        given = tf.nest.pack_sequence_as((self.arguments, self.keywords), operands)
        arguments, keywords = given
        return self._called()(*arguments, **keywords, **self._modes)

    def operands(self) -> list[Any]:
        """Return the inputs as a flat list."""
        operands: list[Any] = tf.nest.flatten((self.arguments, self.keywords))
        return operands

    def _first_step(self) -> Any:
        """Run the model eagerly, choose loss and weights from that; return its output."""
        with tf.device(self.device), tf.GradientTape() as tape:
            output = self._forward(self.operands())
        self.weights = self._trained(tape)
        if self.spec.backward:
            self._loss, _, how = self.first_loss(output)
            if getattr(self.model, "losses", None):
                how += ", and the penalties of its layers"
            self.notes.append(f"loss: {how}")
            self._sources = self.weights
            if not self.weights:
                self.input_gradients()
        return output

    def _trained(self, tape: Any) -> list[Any]:
        """Return the trained weights: the model's, or variables that a function has read."""
        variables = getattr(self.model, "trainable_variables", None)
        return list(tape.watched_variables() if variables is None else variables)

    def _made_optimizer(self) -> Any:
        if self.spec.phase != "training":
            return None
        known: dict[str, Callable[[], Any]] = {
            "sgd": lambda: keras.optimizers.SGD(RATE),
            "momentum": lambda: keras.optimizers.SGD(RATE, momentum=MU),
            "adam": lambda: keras.optimizers.Adam(RATE),
            "adamw": lambda: keras.optimizers.AdamW(RATE),
        }
        if self.user_spec.optimizer not in known:
            near = self.user_spec.optimizer.partition("-")[0]
            raise UnsupportedError(
                f"{self.spec.model}: --optimizer {self.user_spec.optimizer} is PyTorch's; nearest: "
                f"--optimizer {near}"
            )
        optimizer = known[self.user_spec.optimizer]()
        with tf.device(self.device):
            optimizer.build(self.weights)
        return optimizer

    def body(self, *operands: Any) -> dict[str, Any]:
        """Return the results of the phase, as a part of a graph."""
        if not self.spec.backward:
            return {"output": tf.nest.flatten(self._forward(operands))}
        with tf.GradientTape() as tape:
            floating = [operand for operand in operands if operand.dtype.is_floating]
            if not self._sources:
                tape.watch(floating)
            output = self._forward(operands)
            with tf.name_scope(LOSS):
                loss = self._loss(output)
                for penalty in getattr(self.model, "losses", ()):
                    loss += tf.cast(penalty, loss.dtype)
        sources = self._sources or floating
        gradients = tape.gradient(loss, sources)
        pairs = [(g, v) for g, v in zip(gradients, sources, strict=True) if g is not None]
        if not pairs:
            raise UsageError(
                f"{self.spec.model}: its loss has no gradient: nothing that it is computed from "
                "has one; nearest: --phase forward"
            )
        if self._optimizer is None:
            return {"loss": loss, "gradients": [gradient for gradient, _ in pairs]}
        with tf.name_scope(OPTIMIZER):
            self._optimizer.apply_gradients(pairs)
        return {"loss": loss}


# -----------------------------------------------------------------------------
# Layers and tensors.

# Keras's numbers of unnamed layers after the import of a user's file, by file and kind of layer.
_NUMBERS_AFTER_IMPORT: Final[dict[str, dict[str, int]]] = {}
# Keras's name of the attribute with these numbers.
_UIDS: Final = "object_name_uids"


@contextlib.contextmanager
def _layer_numbers_reset(name: str) -> Iterator[None]:
    """Let Keras number unnamed layers as in a process that builds only one model.

    Otherwise the second ``dense`` of a process is ``dense_1``, and names differ between models.

    Args:
        name: name of the model.
    """
    before = dict(global_state.get_global_attribute(_UIDS) or {})
    path = os.path.realpath(name.rpartition(":")[0])
    try:
        if path not in _NUMBERS_AFTER_IMPORT:
            global_state.set_global_attribute(_UIDS, defaultdict(int))
            load_user_object(name)
            _NUMBERS_AFTER_IMPORT[path] = dict(global_state.get_global_attribute(_UIDS) or {})
        numbers = defaultdict(int, _NUMBERS_AFTER_IMPORT[path])
        global_state.set_global_attribute(_UIDS, numbers)
        yield
    finally:
        after = dict(global_state.get_global_attribute(_UIDS) or {})
        most = {word: max(before.get(word, 0), after.get(word, 0)) for word in before | after}
        global_state.set_global_attribute(_UIDS, defaultdict(int, most))


# Likely shapes (without the batch) and types of a model's input, by kinds of its layers.
_LIKELY_INPUTS: Final = (
    (keras.layers.Embedding, (128,), ":int64"),
    (keras.layers.Conv2D, (224, 224, 3), ""),
    ((keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN, keras.layers.RNN), (32, 64), ""),
    (keras.layers.Dense, (64,), ""),
)


def _flat(model: Any) -> list[Any]:
    """Return a model's layers at any depth, including layers inside modules of other kinds."""
    if isinstance(model, keras.Layer):
        return list(model._flatten_layers())  # noqa: SLF001 - no public name has those at any depth
    return [layer for layer in getattr(model, "submodules", ()) if isinstance(layer, keras.Layer)]


def _layers(model: Any) -> Iterable[str]:
    """Return the names of a Keras model's layers, without the model's own name."""
    if not isinstance(model, keras.Layer):
        return ()
    return [layer.name for layer in _flat(model) if layer is not model]
