"""Published protocols run on real steps of PyTorch and TensorFlow, in their own processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.step import StepCase
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.protocols import find_protocol
from pydlbench.steps.protocols.alexnet_tutorial import activations
from pydlbench.steps.protocols.protocol import Run, Subject, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.base import Backend
    from pydlbench.models.graph import Model
    from pydlbench.steps.data.datasets import Dataset
    from pydlbench.steps.protocols.protocol import Number, Published, Settings
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import Worker

__all__ = ["Played", "PlayedKernel", "ProtocolCase", "play", "serve_protocol"]


# -----------------------------------------------------------------------------
# A published protocol on a model in a framework, in a form that crosses to its process.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolCase:
    """What is played, and how.

    Attributes:
        protocol: its name.
        model: None is the first that the script was written for.
        options: of the model, besides those that the script sets.
        framework: None is the script's own.
        mode: None is the framework's first.
        precision: of the products.
        cast: below float32: ``mixed`` or ``whole``; None is what the script does.
        layout: ``nhwc`` or ``nchw``.
        device: ``cpu`` or ``cuda:N``.
        seed: of weights and images.
        batch: images per step; this and the following: None is the script's.
        warmup: steps before those that count.
        steps: that count.
        every: steps between lines.
        epochs: passes over the training images.
        quirks: switched on.
        without: quirks switched off.
        data: folder of the real data set; None generates images.
        generated: how many images to generate: for training (those for validation included), for
            validation and for the test; None is as many as the real data set has.

    Raises:
        UsageError: no such protocol, framework and so on; a model that the script does not have;
            a number that cannot be.
    """

    protocol: str
    model: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    framework: str | None = None
    mode: str | None = None
    precision: str = "fp32"
    cast: str | None = None
    layout: str = "nhwc"
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    warmup: int | None = None
    steps: int | None = None
    every: int | None = None
    epochs: float | None = None
    quirks: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    data: str | None = None
    generated: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        published = self.published
        if self.model is None:
            object.__setattr__(self, "model", published.models[0])
        published.check_model(str(self.model))
        if self.framework is None:
            object.__setattr__(self, "framework", published.framework)
        object.__setattr__(self, "mode", self.step.mode)
        self.settings()

    @property
    def published(self) -> Published:
        """The protocol."""
        return find_protocol(self.protocol)

    @property
    def step(self) -> StepCase:
        """How its steps are run, whatever they are."""
        cast = self.cast or self.published.specs_in(str(self.framework))[0].cast
        return StepCase(
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
        """Return the script's settings with this case's changes."""
        return self.published.settings(
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
        options = {**self.published.model_options(str(self.model)), **self.options}
        return build_model(str(self.model), self.settings().batch, **options)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form that :meth:`from_dict` reads back."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ProtocolCase:
        """Rebuild a case from :meth:`to_dict`'s form, JSON's lists included."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**plain)


# -----------------------------------------------------------------------------
# The paper that a protocol writes on: a named pipe from the framework's process to the host's.
#
# Lines must arrive as they are written, and a worker's own pipe carries one reply per request.


class Paper:
    """The worker's end.

    Args:
        path: of the pipe.
    """

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_WRONLY)

    def line(self, text: str) -> None:
        """Write a line of the script's."""
        self._send({"line": text})

    def note(self, text: str) -> None:
        """Write a remark that is not the script's."""
        self._send({"note": text})

    def close(self) -> None:
        """Say that nothing follows."""
        os.close(self._pipe)

    def _send(self, message: dict[str, str]) -> None:
        rest = json.dumps(message).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]


def read_while(
    work: Callable[[str], Any],
    stop: Callable[[], None],
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> Any:
    """Do some work in a thread and hand on what is written on its paper meanwhile.

    Args:
        work: takes the pipe's path; blocks until the other process is done.
        stop: makes ``work`` end early; called when a line cannot be handed on, or on Ctrl-C.
        write: takes the script's lines.
        note: takes remarks.

    Returns:
        What ``work`` returns; raises what it raises.
    """
    with tempfile.TemporaryDirectory(prefix="pydlbench-") as folder:
        path = str(Path(folder) / "paper")
        os.mkfifo(path, 0o600)
        # Without blocking: there is no writer yet.
        paper = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        ended, end = os.pipe()
        thread = _Work(lambda: work(path), end)
        thread.start()
        try:
            _hand_on(paper, ended, write, note)
        except BaseException:
            stop()
            raise
        finally:
            thread.join()
            for descriptor in (paper, ended, end):
                os.close(descriptor)
    if thread.error is not None:
        raise thread.error
    return thread.result


class _Work(threading.Thread):
    """Runs a function and writes a byte to a pipe when it has ended."""

    def __init__(self, function: Callable[[], Any], end: int) -> None:
        super().__init__(name="protocol", daemon=True)
        self._function, self._end = function, end
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
        finally:
            os.write(self._end, b"\n")


def _hand_on(
    paper: int, ended: int, write: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Hand on lines until the work has ended and the paper is empty."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(paper, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        over = False
        while not over:
            ready = {key.fd for key, _ in selector.select()}
            over = ended in ready
            data = _read(paper)
            if not data and paper in ready:  # its writer has closed it: it would be ready for ever
                selector.unregister(paper)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "line" in message:
                    write(message["line"])
                else:
                    note(message["note"])


def _read(paper: int) -> bytes:
    found = b""
    with contextlib.suppress(BlockingIOError):  # nothing there at present
        while data := os.read(paper, 1 << 16):
            found += data
    return found


# -----------------------------------------------------------------------------
# The host's side of a protocol: has it played in the framework's process, passes its lines on.


class Host(Protocol):
    """What playing a protocol needs of a session."""

    def worker(self, backend: str = ..., device: str = ...) -> Worker:
        """Return a framework's worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a protocol came to.

    Attributes:
        numbers: those that the script prints, as :class:`protocols.Number` has them.
        library: name and version of the framework.
        environment: what the framework says of itself.
        data: where the images are from; None without any.
    """

    numbers: tuple[dict[str, Any], ...]
    library: str
    environment: dict[str, Any]
    data: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            "library": self.library,
            "data": self.data,
            "numbers": list(self.numbers),
            "environment": self.environment,
        }


def play(
    case: ProtocolCase,
    session: Host,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> Played:
    """Play a protocol in its framework's process.

    Args:
        case: what is played.
        session: whose worker plays it; it needs a patience for hours (``Options.timeout_s``).
        write: takes each line of the script, as soon as it is written there.
        note: takes remarks that are not the script's.

    Raises:
        UsageError: data that is missing or damaged, a batch that does not fit it.
        UnsupportedError: the framework cannot do what the script does.
        PydlbenchError: the framework is missing, or its process died.
    """
    worker = session.worker(str(case.framework), case.device)

    def ask(path: str) -> Any:
        return worker.build(serve_protocol, case=case.to_dict(), path=path).facts

    def stop() -> None:
        # Its end ends the question too.
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)

    facts = read_while(ask, stop, write, note)
    return Played(**{**facts, "numbers": tuple(facts["numbers"])})


# -----------------------------------------------------------------------------
# A worker's side of a protocol: data, model and framework brought together, then the script.


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


def serve_protocol(backend: Backend, case: Mapping[str, Any], path: str) -> PlayedKernel:
    """Play a protocol in this process.

    Args:
        backend: of the framework.
        case: a :class:`ProtocolCase` in its JSON form.
        path: of the pipe that takes its lines.
    """
    paper = Paper(path)
    try:
        surroundings = Surroundings(write=paper.line, note=paper.note)
        return PlayedKernel(_played(backend, ProtocolCase.from_dict(case), surroundings))
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
        from pydlbench.steps.torch.scripted import TorchStepper

        stepper = TorchStepper(model, weights, case.step, batch, specs)
    else:
        from pydlbench.steps.tensorflow.scripted import TensorflowStepper

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
    from pydlbench.steps.data.datasets import load
    from pydlbench.steps.data.generated import generate

    name = case.published.data
    if name is None:
        return None
    if case.data is not None:
        return load(name, case.data, surroundings.write)
    if case.generated is None:
        return generate(name, seed=case.seed)
    train, validation, test = case.generated
    return generate(name, seed=case.seed, train=train, validation=validation, test=test)
