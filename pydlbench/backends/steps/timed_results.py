"""Results of timed steps: each sample has other inputs; the results of a random one are kept.

A model that is fast only while nobody looks computes nothing, or something else, in timed steps. So
its inputs change in place before each sample. The outputs of a sample are copied as soon as the
clock has stopped, and a process of the other model computes the same
(:func:`pydlbench.steps.agreement.agree_timed`).
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pydlbench.backends.host_clock import check_sealed, sealed
from pydlbench.backends.steps.inputs import save_results, saved_results
from pydlbench.backends.steps.user_model import UserModel

#: Name of two numbers: elements by which the inputs were rolled, and executions since then.
CHANGE: Final = "change"
#: First word of the names of buffers.
BUFFER: Final = "buffer"
# The system draws it: it follows from no seed.
_RANDOM: Final = random.SystemRandom()


@sealed
class TimedResults:
    """The results of a user model's timed steps.

    Args:
        model: the model, with the weights and inputs that it starts from.
        folder: folder of the kept result; None to replay those of others only.
    """

    def __init__(self, model: UserModel, folder: str | None) -> None:
        self._model, self._folder = model, folder
        tensors = model.tensors
        self._inputs = list(tensors.find([value for _, value in model.inputs()]))
        self._values = [tensors.host(tensor) for tensor in self._inputs]
        self._state = {name: tensors.host(tensor) for name, tensor in self._tensors().items()}
        self._result: Any = None
        self._shift = self._runs = self._samples = 0

    def _tensors(self) -> Mapping[str, Any]:
        """Return the tensors that a step changes; it may put others in the place of buffers."""
        model = self._model
        return model.named_weights() if model.spec.phase == "training" else model.named_buffers()

    def call(self) -> None:
        """Run the step, and keep its result until the next one."""
        self._runs += 1
        self._result = self._model.run()

    def before(self, _: int) -> None:
        """Change the inputs before a sample."""
        check_sealed()
        self._change(_RANDOM.randrange(1 << 30))

    def after(self, _: int) -> None:
        """Keep the result of a sample, or that of an earlier one: each with the same chance."""
        self._samples += 1
        if not _RANDOM.randrange(self._samples):
            self._save(Path(str(self._folder)))

    def replay(self, folder: Path) -> None:
        """Compute again what another process has kept in a folder, from the same inputs."""
        shift, runs = np.load(saved_results(folder)[CHANGE]).tolist()
        self._change(shift)
        for _ in range(runs):  # the state is that of as many steps
            self.call()
        self._save(folder / "expected")

    def _change(self, shift: int) -> None:
        """Roll the inputs whose values may stand in any order; restore weights and optimizer."""
        self._result, self._shift, self._runs = None, shift, 0
        self._model.forget_updates()
        assign = self._model.tensors.assign
        tensors = self._tensors()
        for name in self._state.keys() & tensors.keys():
            assign(tensors[name], self._state[name])
        for tensor, values in zip(self._inputs, self._values, strict=True):
            # Offsets are in order, and a mask's infinite values have their places.
            plain = values.dtype.kind == "f" and bool(np.isfinite(values).all())
            if plain or (values.dtype.kind in "iu" and values.ndim > 1):
                assign(tensor, np.roll(values.reshape(-1), shift).reshape(values.shape))

    def _save(self, folder: Path) -> None:
        results = self._model.results(self._result)
        # A graph of TensorFlow's training has the loss only.
        outputs = results.get("output") or results["loss"]
        named = {f"output {n}": self._computed(x) for n, x in enumerate(outputs.values(), start=1)}
        given = {f"input {n}": x for n, x in enumerate(self._inputs, start=1)}
        given |= {f"{BUFFER} {name}": x for name, x in self._model.named_buffers().items()}
        named |= {name: self._model.tensors.host(tensor) for name, tensor in given.items()}
        save_results(folder, {**named, CHANGE: np.array([self._shift, self._runs])}.items())

    def _computed(self, tensor: Any) -> Any:
        """Return the values of an output; NaN if reading them could run the user's code."""
        if type(tensor).__module__.partition(".")[0] != self._model.spec.framework:
            return np.full(tuple(tensor.shape), np.nan)
        return self._model.tensors.host(tensor)
