"""Runs a published protocol on a model in the framework's process."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import force_setattr

from pydlbench.backends.base import Backend
from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.registry import worker_of
from pydlbench.models import build_model
from pydlbench.models.graph import Model
from pydlbench.protocols.data.datasets import Dataset, generate, load
from pydlbench.protocols.interpreter import run_protocol
from pydlbench.protocols.protocol import (
    LogStream,
    Protocol,
    ProtocolRun,
    ProtocolSubject,
    Settings,
    find_protocol,
)
from pydlbench.records.published import ProtocolNumber, ProtocolOptions
from pydlbench.records.record import Record
from pydlbench.records.step import StepSpec
from pydlbench.runner.session import Session


class ProtocolSpec(ProtocolOptions, frozen=True, kw_only=True):
    """A protocol with its options.

    Model and framework default to those of the script, the mode to the framework's first one.

    Attributes:
        data: folder of the real data set; None to generate images.
        generated: numbers of images to generate for training (validation included), validation and
            test; None for the numbers of the real data set.

    Raises:
        UsageError: a protocol, framework or other choice does not exist, the script lacks the
            model, or a number is invalid.
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
        """The protocol."""
        return find_protocol(self.protocol)

    @property
    def step(self) -> StepSpec:
        """Common options of all its steps."""
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
        """Return the script's settings with these options."""
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
        """Return the model's graph for this script."""
        options = {**self.declaration.model_options(str(self.model)), **self.options}
        return build_model(str(self.model), self.settings().batch, **options)


class ProtocolResult(Record, frozen=True, kw_only=True):
    """Results of a protocol.

    Attributes:
        library: name and version of the framework.
        data: source of the images; None if the script uses no data set.
        numbers: results that the script prints.
        environment: version and settings of the framework.
    """

    library: str
    data: str | None
    numbers: tuple[ProtocolNumber, ...]
    environment: dict[str, Any]


# -----------------------------------------------------------------------------
# The host's side: receives lines while the worker runs the protocol.


def run_in_worker(
    spec: ProtocolSpec,
    session: Session,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> ProtocolResult:
    """Run a protocol in its framework's process.

    Args:
        spec: protocol and options.
        session: session with the worker; its ``Options.timeout_s`` must allow for hours.
        write: called with each line of the script as it is written.
        note: called with remarks other than the script's lines.

    Raises:
        UsageError: the data is missing or damaged, or the batch does not fit it.
        UnsupportedError: the framework cannot do what the script does.
        PydlbenchError: the framework is missing, or its process died.
    """
    worker = session.worker(str(spec.framework), spec.device)

    def forward(message: dict[str, Any]) -> None:
        if "line" in message:
            write(message["line"])
        else:
            note(message["note"])

    return ProtocolResult.from_dict(worker.call(run_here, forward, spec=spec.to_dict()))


# -----------------------------------------------------------------------------
# The worker's side: loads data, model and framework, and runs the script.


def run_here(
    backend: Backend, tell: Callable[[dict[str, Any]], None], spec: dict[str, Any]
) -> dict[str, Any]:
    """Run a protocol in this process.

    Args:
        backend: backend of the framework.
        tell: sends a message to the host.
        spec: a :class:`ProtocolSpec` as JSON.

    Returns:
        A :class:`ProtocolResult` as JSON.
    """
    requested = ProtocolSpec.from_dict(spec)
    log = LogStream(write=lambda line: tell({"line": line}), note=lambda text: tell({"note": text}))
    graph = requested.build()
    environment = backend.describe()
    data = _data(requested, log)
    weights, batch = make_weights(graph, requested.seed), make_batch(graph, requested.seed)
    subject = _subject(requested, graph, environment)
    settings = requested.settings()
    definitions = requested.declaration.definitions_in(str(requested.framework), settings)
    separate = any(definition.loss == "output" for definition in definitions)
    make = worker_of(str(requested.framework)).catalogue_model
    with make(graph, weights, requested.step, batch, separate=separate) as model:
        numbers = run_protocol(
            ProtocolRun(
                protocol=requested.declaration,
                model=model,
                subject=subject,
                settings=settings,
                log=log,
                data=data,
            )
        )
    return ProtocolResult(
        numbers=numbers,
        library=f"{requested.framework} {subject.version}",
        environment=environment,
        data=None if data is None else data.source,
    ).to_dict()


def activations(model: Model) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape (channels last) of the outputs that scripts list.

    These are convolutions, poolings and products.
    """
    shapes = []
    for node in model.nodes:
        if node.op in ("conv", "pool", "linear"):
            channels, *image = node.shape
            shapes.append((node.name, (model.batch, *image, channels)))
    return tuple(shapes)


def _subject(spec: ProtocolSpec, model: Model, environment: Mapping[str, Any]) -> ProtocolSubject:
    return ProtocolSubject(
        model=model.name,
        image=model.image,
        activations=activations(model),
        framework=str(spec.framework),
        version=str(environment.get("version", "")),
        # Scripts have a single half precision.
        precision=spec.precision.removesuffix("-tc"),
        device=spec.device,
        layout=spec.layout.upper(),
        optimizer=model.optimizer.kind,
    )


def _data(spec: ProtocolSpec, log: LogStream) -> Dataset | None:
    """Return the images that the protocol needs: the real ones, or generated ones."""
    name = spec.declaration.data
    if name is None:
        return None
    if spec.data is not None:
        return load(name, spec.data, log.write)
    if spec.generated is None:
        return generate(name, seed=spec.seed)
    train, validation, test = spec.generated
    return generate(name, seed=spec.seed, train=train, validation=validation, test=test)
