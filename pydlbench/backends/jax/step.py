"""A model in JAX and its steps: each one function that XLA compiles ahead of time.

A step takes what it changes (weights, velocities, running statistics, the key of dropout), gives it
back changed, and may put the new into the memory of the old (``donate_argnums``), as training loops
in JAX are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.frameworks.layouts import arranged
from pydlbench.backends.jax.net import LOSS, OPTIMIZER, Net, Run
from pydlbench.backends.jax.settings import jax, place_of
from pydlbench.backends.steps.definition import Guarded, Outcome, StepDefinition, check_trainable
from pydlbench.backends.steps.inputs import trained
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import LossKind
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.backends.steps.trace import StepTracer
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec

jnp = jax.numpy


class JaxModel(Guarded):
    """A model with its weights and a minibatch; see ``steps.definition.FrameworkModel``.

    Args:
        model: the graph.
        weights: to start from, by name.
        case: device, precision, cast, layout and seed; the rest is not looked at.
        batch: images and labels, for steps that are handed none.

    Raises:
        UnsupportedError: JAX has no such precision on this device.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        case: StepSpec,
        batch: Batch,
    ) -> None:
        super().__init__()
        place = place_of(case.device, case.precision)
        self.model, self.case, self.place = model, case, place
        self.net = Net(model, case.layout, place.numbers.dtype)
        self._weights = weights
        self._stored = place.numbers.dtype if case.cast == "whole" else "float32"
        self._names = frozenset(trained(model))
        #: What steps change: ``trained`` tensors and running statistics (``buffers``) by name, and
        #: the ``key`` of dropout.
        self.state: dict[str, Any] = {}
        self._steps: list[JaxStep] = []
        self.initialize()
        self.host = self.arrays(batch)
        #: Images and labels on the device.
        self.resident = self.placed(self.host)

    def guards(self) -> Iterator[AbstractContextManager[None]]:
        """Yield what says in one line what was refused."""
        yield translated(f"{self.case.model} ({self.case.mode})")

    def prepare(self, definition: StepDefinition) -> JaxStep:
        """Build and compile a step.

        Raises:
            UnsupportedError: JAX cannot do what is defined.
            UsageError: training without an optimizer.
        """
        if (
            definition.zero_fill
            or definition.weights == "host"
            or definition.loss == "output"
            or definition.averages is not None
        ):
            raise UnsupportedError(
                f"step {definition.name}: published scripts are not run in JAX; nearest: "
                "--framework torch"
            )
        step = JaxStep(self, definition)
        step.compile()
        self._steps.append(step)
        return step

    def initialize(self) -> None:
        """Give all weights their starting values, and forget what training has left."""
        tensors = {name: self._tensor(name, one) for name, one in self._weights.items()}
        self.state = {
            "trained": {name: one for name, one in tensors.items() if name in self._names},
            "buffers": {name: one for name, one in tensors.items() if name not in self._names},
            "key": jax.device_put(jax.random.key(self.case.seed), self.place.device),
        }
        for step in self._steps:
            step.reset()

    def synchronize(self) -> None:
        """Return when all calls are done; on a CPU each returns with its results."""
        for step in self._steps:
            step.wait()

    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Refuse to trace the step; see ``steps.definition.FrameworkModel``."""
        del run
        raise UnsupportedError(
            "jax xla: XLA's profile has its fusions, of many operations each, and no calls of the "
            "step; nearest: --framework torch"
        )

    def arrays(self, batch: Batch) -> tuple[NDArray[Any], ...]:
        """Return images and labels as JAX takes them from the host."""
        images = arranged(batch.images, self.case.layout)
        return (images,) if batch.labels is None else (images, batch.labels.astype(np.int32))

    def placed(self, arrays: tuple[NDArray[Any], ...]) -> tuple[Any, ...]:
        """Return arrays of the host's on the device."""
        return tuple(jax.device_put(one, self.place.device) for one in arrays)

    def loss(self, kind: LossKind, output: Any, labels: Any, weights: Mapping[str, Any]) -> Any:
        """Return the loss of an output, in float32; ``model`` has L2 terms of the weights."""
        own = kind in ("model", "unregularised")
        output = output.astype(jnp.float32)
        if own and labels is not None:
            if output.ndim == 4 and self.net.images == "nchw":
                output = output.transpose(0, 2, 3, 1)  # classes are the last
            logarithms = jax.nn.log_softmax(output)
            total = -jnp.mean(jnp.take_along_axis(logarithms, labels[..., None], axis=-1))
        elif (self.model.loss.kind if own else kind) == "l2":
            total = jnp.sum(output * output) / 2
        else:
            total = jnp.sum(output)
        for one in self.model.decays if kind == "model" else ():
            tensor = weights[f"{one.node}/{one.tensor}"].astype(jnp.float32)
            total += one.factor * jnp.sum(tensor * tensor) / 2
        return total

    def _tensor(self, name: str, array: NDArray[Any]) -> Any:
        node = self.model[name.rpartition("/")[0]]
        exact = node.layer is not None and node.layer.in_float32(name.rpartition("/")[2])
        # A copy of its own, which may be given away.
        put = self.place.put(self.net.arranged(array), "float32" if exact else self._stored)
        return jnp.array(put, copy=True)


class JaxStep:
    """A step as one program; see ``steps.definition.Step``.

    Args:
        owner: the model and its weights.
        definition: what the step does.

    Raises:
        UsageError: training without an optimizer.
    """

    def __init__(self, owner: JaxModel, definition: StepDefinition) -> None:
        self.owner, self.definition = owner, definition
        self._updates = definition.optimizer == "model"
        if self._updates:
            check_trainable(owner.model, "--option optimizer=sgd")
        drops = definition.drops and any(node.op == "dropout" for node in owner.model)
        #: What of the model's state it changes.
        self._changed = tuple(
            name
            for name, changed in (
                ("trained", self._updates),
                ("buffers", definition.batch_statistics and definition.backward),
                ("key", drops),
            )
            if changed
        )
        self._velocity: dict[str, Any] = {}
        self._last_rate = 0.0
        self._rate: Any = None
        self.reset()
        self._last: Any = None
        self._program: Any = None

    def compile(self) -> None:
        """Have XLA make a program of it; only then it can be called."""
        self._program = self.owner.place.compiled(self.body, self.operands(), donated=(0,))

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; returns when it is done, unless that is on a GPU and nothing is fetched."""
        if rate is not None and rate != self._last_rate:
            self._set_rate(rate)
        images = None
        if self.definition.feed == "host":
            host = self.owner.host if batch is None else self.owner.arrays(batch)
            images = self.owner.placed(host)
        found, fetch = self.run(images), self.definition.fetch
        if not fetch:
            return Outcome()
        there = {
            name: [np.array(one, np.float32) for one in jax.tree.leaves(found[name])]
            for name in fetch
            if name != "gradients"
        }
        return Outcome(
            output=there["output"][0] if "output" in there else None,
            predictions=there["predictions"][0] if "predictions" in there else None,
            loss=float(there["loss"][0]) if "loss" in there else None,
            gradients=self._fetched(found["gradients"]) if "gradients" in fetch else None,
        )

    def run(self, images: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """Run it once and return its results where they are; images are the resident ones."""
        changed, found = self._program(*self.operands(images))
        self._velocity = changed.pop("velocity", self._velocity)
        self.owner.state.update(changed)
        # Results of a program are there all at once.
        waited = found["loss"] if "loss" in found else found.get("output")
        if self.owner.place.queues:
            self._last = waited
        elif waited is not None:
            waited.block_until_ready()
        return dict(found)

    def wait(self) -> None:
        """Return when all calls are done; a device runs them in their order."""
        if self._last is not None:
            self._last.block_until_ready()

    def reset(self) -> None:
        """Forget what training has left: velocities, the rate."""
        optimizer = self.owner.model.optimizer
        moving = self._updates and optimizer.kind == "momentum"
        self._velocity = {
            name: jnp.zeros_like(one)
            for name, one in (self.owner.state["trained"] if moving else {}).items()
        }
        self._set_rate(optimizer.rate)

    def operands(self, images: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """Return what :meth:`body` takes, as it is now."""
        state = self.owner.state
        changed = {name: state[name] for name in self._changed}
        if self._updates:
            changed["velocity"] = self._velocity
        kept = {name: state[name] for name in ("trained", "buffers") if name not in changed}
        return changed, kept, self._rate, self.owner.resident if images is None else images

    def body(
        self, changed: dict[str, Any], kept: dict[str, Any], rate: Any, batch: tuple[Any, ...]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what was changed, and what is wanted; XLA drops what neither depends on.

        Args:
            changed: tensors by name of what the step gives back.
            kept: of what it only reads.
            rate: of the optimizer.
            batch: images, and labels where there are any.
        """
        definition, state = self.definition, {**kept, **changed}
        images, labels = batch[0], batch[1] if len(batch) > 1 else None
        key = following = None
        if "key" in changed:
            key, following = jax.random.split(changed["key"])

        def differentiated(weights: dict[str, Any], source: Any) -> Any:
            run = Run({**state["buffers"], **weights}, definition, key, {})
            output = self.owner.net.output(source, run)
            if not definition.backward and definition.loss == "none":
                return jnp.zeros(()), (output, run.moved)
            with jax.named_scope(LOSS):
                loss = self.owner.loss(definition.loss, output, labels, weights)
            return loss, (output, run.moved)

        if not definition.backward:
            loss, (output, _) = differentiated(state["trained"], images)
            return {}, self._wanted(output, loss, {"output": output})
        places = (0, 1) if definition.input_gradient else (0,)
        gradient = jax.value_and_grad(differentiated, places, has_aux=True)
        (loss, (output, moved)), (gradients, *others) = gradient(state["trained"], images)
        # The images' gradient too has to be returned, or it would be dropped.
        found: dict[str, Any] = {"images": others}
        given: dict[str, Any] = {"key": following, "buffers": {**state["buffers"], **moved}}
        if self._updates:
            with jax.named_scope(OPTIMIZER):
                given |= self._updated(state["trained"], changed["velocity"], gradients, rate)
        else:
            found["gradients"] = gradients
        return {name: given[name] for name in changed}, self._wanted(output, loss, found)

    def _updated(
        self, weights: dict[str, Any], velocity: dict[str, Any], gradients: Any, rate: Any
    ) -> dict[str, Any]:
        """Return weights and velocities after the optimizer's step."""
        if velocity:
            mu = self.owner.model.optimizer.mu
            velocity = {
                name: (mu * one + gradients[name]).astype(one.dtype)
                for name, one in velocity.items()
            }
        by = velocity or gradients
        moved = {name: (one - rate * by[name]).astype(one.dtype) for name, one in weights.items()}
        return {"trained": moved, "velocity": velocity}

    def _wanted(self, output: Any, loss: Any, found: dict[str, Any]) -> dict[str, Any]:
        """Add what is fetched or kept."""
        definition = self.definition
        if "output" in definition.fetch:
            found["output"] = output
        if "loss" in definition.fetch or definition.keep_loss:
            found["loss"] = loss
        if "predictions" in definition.fetch:
            found["predictions"] = jax.nn.softmax(output.astype(jnp.float32))
        return found

    def _fetched(self, gradients: dict[str, Any]) -> tuple[NDArray[np.float32], ...]:
        """Return gradients in the order of the trained tensors."""
        return tuple(np.array(gradients[name], np.float32) for name in trained(self.owner.model))

    def _set_rate(self, rate: float) -> None:
        self._last_rate = rate
        self._rate = self.owner.place.put(np.asarray(rate, np.float32), "float32")
