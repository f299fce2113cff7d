"""A worker's side of a protocol: data, model and framework brought together, then the script."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.endtoend.inputs import make_batch
from pydlbench.endtoend.playing.case import ProtocolCase
from pydlbench.endtoend.playing.paper import Paper
from pydlbench.endtoend.protocols import Run, Subject, Surroundings
from pydlbench.endtoend.protocols.alexnet_tutorial import activations
from pydlbench.endtoend.weights import make_weights
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.base import Backend
    from pydlbench.endtoend.data import Dataset
    from pydlbench.endtoend.protocols import Number
    from pydlbench.models.graph import Model
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["PlayedKernel", "play"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    numbers: tuple[Number, ...]
    library: str
    environment: dict[str, Any]
    data: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form, that of ``Played``."""
        return {
            "numbers": [dataclasses.asdict(one) for one in self.numbers],
            "library": self.library,
            "environment": self.environment,
            "data": self.data,
        }


class PlayedKernel:
    """What a worker holds of a protocol that has been played: its facts.

    Args:
        facts: what came of it.
    """

    def __init__(self, facts: _Facts) -> None:
        self.facts: Any = facts

    def sample(self, request: Request) -> Chunk:
        """Refuse: the protocol has held the clock already."""
        raise UnsupportedError(f"a protocol has been played and has no {request.samples} samples")


def play(backend: Backend, fields: Mapping[str, Any], path: str) -> PlayedKernel:
    """Play a protocol in this process.

    Args:
        backend: of the framework.
        fields: a :class:`ProtocolCase` in its JSON form.
        path: of the pipe that takes its lines.
    """
    case = ProtocolCase.from_dict(fields)
    paper = Paper(path)
    try:
        surroundings = Surroundings(write=paper.line, note=paper.note)
        return PlayedKernel(_played(backend, case, surroundings))
    finally:
        paper.close()


def _played(backend: Backend, case: ProtocolCase, surroundings: Surroundings) -> _Facts:
    model = case.build()
    environment = backend.describe()
    data = _data(case, surroundings)
    weights = make_weights(model, case.seed)
    batch = make_batch(model, case.seed)
    specs = case.published.specs_in(str(case.framework))
    stepper: Any
    if case.framework == "torch":
        from pydlbench.endtoend.torch.stepper import TorchStepper

        stepper = TorchStepper(model, weights, case.step, batch, specs)
    else:
        from pydlbench.endtoend.tensorflow.stepper import TensorflowStepper

        stepper = TensorflowStepper(model, weights, case.step, batch)
    subject = _subject(case, model, environment)
    with stepper:
        numbers = case.published.run(
            Run(
                stepper=stepper,
                subject=subject,
                settings=case.settings(),
                surroundings=surroundings,
                data=data,
            )
        )
    return _Facts(
        numbers=numbers,
        library=f"{case.framework} {subject.version}",
        environment=environment,
        data=None if data is None else data.source,
    )


def _subject(case: ProtocolCase, model: Model, environment: Mapping[str, Any]) -> Subject:
    return Subject(
        model=model.name,
        image=model.image,
        activations=activations(model),
        framework=str(case.framework),
        version=str(environment.get("version", "")),
        # Scripts know no other half precision.
        precision=case.precision.removesuffix("-tc"),
        device=case.device,
        layout=case.layout.upper(),
        optimizer=model.optimizer.kind,
    )


def _data(case: ProtocolCase, surroundings: Surroundings) -> Dataset | None:
    """Return the images that the protocol needs: the real ones, or generated ones."""
    from pydlbench.endtoend.data import generate, load

    name = case.published.data
    if name is None:
        return None
    if case.data is not None:
        return load(name, case.data, surroundings.write)
    if case.generated is None:
        return generate(name, seed=case.seed)
    train, validation, test = case.generated
    return generate(name, seed=case.seed, train=train, validation=validation, test=test)
