"""A published protocol on a model: asked for by the host, run in the framework's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import force_setattr

from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.registry import worker_of
from pydlbench.models import build_model
from pydlbench.protocols.interpreter import run_protocol
from pydlbench.protocols.protocol import LogStream, Run, Subject
from pydlbench.protocols.scripts import find_protocol
from pydlbench.records.protocol import ProtocolNumber, ProtocolOptions
from pydlbench.records.record import Record
from pydlbench.records.step import StepSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.base import Backend
    from pydlbench.models.graph import Model
    from pydlbench.protocols.data.datasets import Dataset
    from pydlbench.protocols.protocol import Protocol, Settings
    from pydlbench.runner.session import Session


class ProtocolSpec(ProtocolOptions, frozen=True, kw_only=True):
    """What is run, and how.

    Without a model or framework it is the script's own, without a mode the framework's first.

    Attributes:
        data: folder of the real data set; None generates images.
        generated: how many images to generate: for training (those for validation included), for
            validation and for the test; None is as many as the real data set has.

    Raises:
        UsageError: no such protocol, framework and so on; a model that the script does not have;
            a number that cannot be.
    """

    data: str | None = None
    generated: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        protocol = self.declaration
        if self.model is None:
            force_setattr(self, "model", protocol.models[0])
        protocol.check_model(str(self.model))
        if self.framework is None:
            force_setattr(self, "framework", protocol.framework)
        force_setattr(self, "mode", self.step.mode)
        self.settings()

    @property
    def declaration(self) -> Protocol:
        """What the protocol declares."""
        return find_protocol(self.protocol)

    @property
    def step(self) -> StepSpec:
        """How its steps are run, whatever they are."""
        cast = self.cast or self.declaration.definitions_in(str(self.framework))[0].cast
        return StepSpec(
            model=str(self.model),
            framework=str(self.framework),
            mode=self.mode,
            precision=self.precision,
            cast=cast,
            layout=self.layout,
            device=self.device,
            seed=self.seed,
        )

    def settings(self) -> Settings:
        """Return the script's settings with this one's changes."""
        return self.declaration.settings(
            self.model,
            batch=self.batch,
            warmup=self.warmup,
            steps=self.steps,
            every=self.every,
            epochs=self.epochs,
            quirks=self.quirks,
            without=self.without,
        )

    def build(self) -> Model:
        """Return the model's graph as the script has it."""
        options = {**self.declaration.model_options(str(self.model)), **self.options}
        return build_model(str(self.model), self.settings().batch, **options)


class ProtocolResult(Record, frozen=True, kw_only=True):
    """What a protocol came to.

    Attributes:
        library: name and version of the framework.
        data: where the images are from; None without any.
        numbers: those that the script prints.
        environment: what the framework says of itself.
    """

    library: str
    data: str | None
    numbers: tuple[ProtocolNumber, ...]
    environment: dict[str, Any]


# -----------------------------------------------------------------------------
# The host's side: lines arrive on the worker's channel while the protocol runs there.


def run_in_worker(
    spec: ProtocolSpec,
    session: Session,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> ProtocolResult:
    """Run a protocol in its framework's process.

    Args:
        spec: what is run.
        session: whose worker runs it; it needs a patience for hours (``Options.timeout_s``).
        write: takes each line of the script, as soon as it is written there.
        note: takes remarks that are not the script's.

    Raises:
        UsageError: data that is missing or damaged, a batch that does not fit it.
        UnsupportedError: the framework cannot do what the script does.
        PydlbenchError: the framework is missing, or its process died.
    """
    worker = session.worker(str(spec.framework), spec.device)

    def hand_on(message: dict[str, Any]) -> None:
        if "line" in message:
            write(message["line"])
        else:
            note(message["note"])

    return ProtocolResult.from_dict(worker.call(run_here, hand_on, spec=spec.to_dict()))


# -----------------------------------------------------------------------------
# The worker's side: data, model and framework brought together, then the script.


def run_here(
    backend: Backend, tell: Callable[[dict[str, Any]], None], spec: dict[str, Any]
) -> dict[str, Any]:
    """Run a protocol in this process.

    Args:
        backend: of the framework.
        tell: sends a message to the host.
        spec: a :class:`ProtocolSpec` in its JSON form.

    Returns:
        A :class:`ProtocolResult` likewise.
    """
    wanted = ProtocolSpec.from_dict(spec)
    log = LogStream(write=lambda line: tell({"line": line}), note=lambda text: tell({"note": text}))
    graph = wanted.build()
    environment = backend.describe()
    data = _data(wanted, log)
    weights, batch = make_weights(graph, wanted.seed), make_batch(graph, wanted.seed)
    subject = _subject(wanted, graph, environment)
    definitions = wanted.declaration.definitions_in(str(wanted.framework), wanted.settings())
    separate = any(definition.loss == "output" for definition in definitions)
    make = worker_of(str(wanted.framework)).catalogue_model
    with make(graph, weights, wanted.step, batch, separate=separate) as model:
        numbers = run_protocol(
            Run(
                protocol=wanted.declaration,
                model=model,
                subject=subject,
                settings=wanted.settings(),
                log=log,
                data=data,
            )
        )
    return ProtocolResult(
        numbers=numbers,
        library=f"{wanted.framework} {subject.version}",
        environment=environment,
        data=None if data is None else data.source,
    ).to_dict()


def activations(model: Model) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape (channels last) of the outputs that scripts list.

    They are those of convolutions, poolings and products.
    """
    shapes = []
    for node in model.nodes:
        if node.op in ("conv", "pool", "linear"):
            channels, *image = node.shape
            shapes.append((node.name, (model.batch, *image, channels)))
    return tuple(shapes)


def _subject(spec: ProtocolSpec, model: Model, environment: Mapping[str, Any]) -> Subject:
    return Subject(
        model=model.name,
        image=model.image,
        activations=activations(model),
        framework=str(spec.framework),
        version=str(environment.get("version", "")),
        # Scripts know no other half precision.
        precision=spec.precision.removesuffix("-tc"),
        device=spec.device,
        layout=spec.layout.upper(),
        optimizer=model.optimizer.kind,
    )


def _data(spec: ProtocolSpec, log: LogStream) -> Dataset | None:
    """Return the images that the protocol needs: the real ones, or generated ones."""
    from pydlbench.protocols.data.datasets import load
    from pydlbench.protocols.data.generated import generate

    name = spec.declaration.data
    if name is None:
        return None
    if spec.data is not None:
        return load(name, spec.data, log.write)
    if spec.generated is None:
        return generate(name, seed=spec.seed)
    train, validation, test = spec.generated
    return generate(name, seed=spec.seed, train=train, validation=validation, test=test)
