"""A step of a whole model: its specification, its preparation, and the record of its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.models.user_model import is_onnx, is_user_model
from pydlbench.records.measurement import Framework, Phase, Precision, Status, TimeSummary
from pydlbench.records.record import Record, one_of, shown
from pydlbench.records.trace import (
    TRACES,
    CallInContext,
    Dominant,
    ModuleInContext,
    TraceFacts,
    Tracing,
)
from pydlbench.records.user_model import OPTIMIZERS, UserModelSpec
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.units import format_seconds, per_second
from pydlbench.words import (
    AS_BUILT,
    CASTS,
    FEEDS,
    FRAMEWORK_MODES,
    FRAMEWORKS,
    IMAGE_LAYOUTS,
    ONNX_FRAMEWORK,
    PHASES,
    PRECISIONS,
    check_device,
    check_word,
    option_words,
)

if TYPE_CHECKING:
    from pydlbench.backends.host_clock import HostClock
    from pydlbench.backends.steps.trace import TracedSteps


#: Beginning of the target of a swap that is a module, not an operator.
SWAPPED_MODULE: Final = "module:"


# -----------------------------------------------------------------------------
# Specification of a step: model, phase, framework and settings.


class StepSpec(Record, frozen=True, kw_only=True):
    """Specification of an end-to-end row.

    Attributes:
        model: name on the command line: one of the catalogue, or ``FILE.py:CALLABLE``,
            ``package.module:CALLABLE`` or ``FILE.onnx`` for a user's model.
        options: options of the model, as :func:`pydlbench.models.build_model` takes them; arguments
            of the user's callable, as text.
        own: inputs, loss and optimizer of a user's model; None for a model of the catalogue.
        batch: images per step; None is the model's default.
        phase: ``forward``, ``forward-backward`` (gradients of all weights) or ``training`` (with L2
            terms and an update of the weights).
        framework: ``torch``, ``tensorflow`` or ``jax``; ``onnxruntime`` for ``FILE.onnx``.
        mode: ``eager`` or ``compiled``, ``graph`` or ``xla``, ``optimized`` or ``unoptimized``;
            None is the first of its framework.
        precision: precision of the products, one of ``pydlbench.words.PRECISIONS``.
        cast: below float32: ``mixed`` keeps weights in float32 (PyTorch's autocast, TensorFlow's
            mixed precision), ``whole`` keeps the whole model in the narrow type.
        layout: layout of images: ``nhwc`` (PyTorch's channels_last; default) or ``nchw``. A user's
            model has ``nhwc`` only if that is requested, else ``as-built``.
        device: ``cpu`` or ``cuda:N``.
        feed: ``resident`` images and labels, or new ones from NumPy arrays of the ``host`` in each
            step.
        fetch: whether results are copied to the host as NumPy arrays, as ``session.run`` did: the
            output of a forward phase, all gradients, or the loss of training.
        dropout: whether dropout is active outside the forward phase.
        running_statistics: normalise with the running statistics in every phase.
        seed: seed of weights, images and labels.
        swaps: user's kernels in the place of operators or modules of PyTorch:
            ``aten.relu=FILE.py:LAUNCH``, ``module:NAME=FILE.py:CALLABLE``. Without ``=`` the
            original is called through the same Python hook.

    Raises:
        UsageError: a word that is not among its choices.
    """

    model: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    own: UserModelSpec | None = None
    batch: Annotated[int | None, shown("batch", varies=True)] = None
    phase: Annotated[Phase, shown("phase", right=False, varies=True)] = "forward"
    framework: Framework = FRAMEWORKS[0]
    mode: str | None = None
    precision: Annotated[Precision, shown("precision", right=False, varies=True)] = "fp32"
    cast: str = "mixed"
    layout: str = ""
    device: Annotated[str, shown("device", right=False, varies=True)] = "cpu"
    feed: str = "resident"
    fetch: bool = False
    dropout: bool = True
    running_statistics: bool = False
    seed: int = 0
    swaps: tuple[str, ...] | None = None

    promised = ("batch", "phase", "framework", "mode", "precision", "device")
    omitted = ("own", "swaps")

    def __post_init__(self) -> None:
        if self.own is None and is_user_model(self.model):
            msgspec.structs.force_setattr(self, "own", UserModelSpec())
        if not self.layout or (self.own is not None and self.layout == "nchw"):
            msgspec.structs.force_setattr(self, "layout", usual_layout(self.own))
        check_word("--framework", self.framework, tuple(FRAMEWORK_MODES))
        modes = FRAMEWORK_MODES[self.framework]
        if self.mode is None:
            msgspec.structs.force_setattr(self, "mode", modes[0])
        for option, value, choices in (
            ("--mode", str(self.mode), modes),
            ("--phase", self.phase, PHASES),
            ("--precision", self.precision, PRECISIONS),
            ("--cast", self.cast, CASTS),
            ("--layout", self.layout, (*IMAGE_LAYOUTS, *([AS_BUILT] if self.own else []))),
            ("--feed", self.feed, FEEDS),
        ):
            check_word(option, value, choices)
        check_device(self.device)
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"--batch {self.batch}: no images; nearest: 1")
        if self.own is not None and self.framework not in (*FRAMEWORKS, ONNX_FRAMEWORK):
            raise UsageError(
                f"--framework {self.framework}: runs models of the catalogue, not {self.model}; "
                f"nearest: --framework {FRAMEWORKS[0]}"
            )
        if self.own is not None and self.phase == "training" and self.own.optimizer == "none":
            raise UsageError(
                "--optimizer none: training needs one; nearest: --optimizer sgd, or "
                "--phase forward-backward"
            )
        if self.swaps and (self.framework, self.mode) != ("torch", "eager"):
            raise UsageError(
                f"--swap: replaces calls of torch eager, not of {self.framework} {self.mode}; "
                "nearest: --framework torch --mode eager"
            )
        if is_onnx(self.model) or self.framework == ONNX_FRAMEWORK:
            self._check_onnx()

    def _check_onnx(self) -> None:
        """Raise an error for options that an ONNX file does not have."""
        if not is_onnx(self.model):
            raise UsageError(
                f"--framework {self.framework}: runs FILE.onnx, not {self.model}; nearest: "
                "--framework torch"
            )
        if self.framework != ONNX_FRAMEWORK:
            raise UsageError(
                f"--framework {self.framework}: {self.model} runs in {ONNX_FRAMEWORK}; nearest: "
                f"--framework {ONNX_FRAMEWORK}"
            )
        own = self.own or UserModelSpec()
        for option, given, only in (
            ("--phase", self.phase, PHASES[0]),
            ("--precision", self.precision, PRECISIONS[0]),
            ("--layout", self.layout, AS_BUILT),
            ("--feed", self.feed, FEEDS[0]),
            ("--loss", own.loss, None),
            ("--optimizer", own.optimizer, OPTIMIZERS[0]),
            ("--train-mode or --eval-mode", own.train, None),
            ("--set", options_text(self.options), ""),
        ):
            if given != only:
                word = "" if isinstance(given, bool) else f" {given}"
                raise UsageError(
                    f"{option}{word}: {self.model} runs forward, in its own types and layouts; "
                    "nearest: leave it out"
                )

    @property
    def on_gpu(self) -> bool:
        """Whether its device is a GPU."""
        return self.device != "cpu"

    @property
    def backward(self) -> bool:
        """Whether its phase computes gradients."""
        return self.phase != "forward"

    @property
    def what(self) -> str:
        """Model, batch, phase and precision: ``vgg11 batch 8 training fp32``."""
        batch = "" if self.batch is None else f"batch {self.batch} "
        swaps = "".join(f" {swap}" for swap in self.swaps or ())
        return f"{self.model} {batch}{self.phase} {self.precision}{swaps}"

    @property
    def label(self) -> str:
        """A short name for progress lines: ``vgg11 batch 8 training fp32 torch eager``."""
        return f"{self.what} {self.framework} {self.mode}"


def usual_layout(own: object) -> str:
    """Return the default layout of a step.

    Args:
        own: how a user's model is run; None for a model of the catalogue.
    """
    return IMAGE_LAYOUTS[0] if own is None else AS_BUILT


def options_text(options: Mapping[str, Any]) -> str:
    """Return the options of a model as text: ``lrn=off``; empty for the defaults."""
    return " ".join(f"{name}={options[name]}" for name in sorted(options))


def framework_text(step: Mapping[str, Any]) -> str:
    """Return framework and mode of a step, and its settings other than the defaults.

    Args:
        step: the JSON object of a step, a check or a protocol; missing keys are skipped.
    """
    layout, feed, cast = (step.get(name) for name in ("layout", "feed", "cast"))
    words = (
        *(step.get("framework"), step.get("mode")),
        layout if layout != usual_layout(step.get("own")) else None,
        feed if feed != FEEDS[0] else None,
        cast if step.get("precision") != "fp32" and cast != CASTS[0] else None,
        "fetch" if step.get("fetch") else None,
        "without dropout" if step.get("dropout") is False else None,
        "running statistics" if step.get("running_statistics") else None,
    )
    return " ".join(str(word) for word in words if word)


# -----------------------------------------------------------------------------
# Preparation of a step, and facts about a prepared one.


def step_words(step: StepSpec, *, framework: bool = True) -> list[str]:
    """Return the arguments of a command line that ask for a step, perhaps in any framework."""
    own = step.own
    # A user's model has its own batch, except an ONNX file that leaves it open, without --input.
    has_batch = own is None or (is_onnx(step.model) and not own.inputs)
    names = {name: name.replace("_", "-") if own is None else name for name in step.options}
    return [
        step.model,
        *option_words(
            ("--batch", step.batch if has_batch else None, None),
            ("--phase", step.phase, PHASES[0]),
            ("--precision", step.precision, PRECISIONS[0]),
            ("--layout", step.layout, usual_layout(own)),
            *(("--set", f"{names[name]}={value}", "") for name, value in step.options.items()),
        ),
        *(own.words() if own is not None else ()),
        *option_words(
            ("--feed", step.feed, FEEDS[0]),
            ("--framework", step.framework if framework else "", ""),
            ("--device", step.device, "cpu"),
            # A framework's first mode is the default.
            ("--mode", step.mode, FRAMEWORK_MODES[step.framework][0]),
        ),
    ]


class Check(Record, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        name: ``shapes``, ``parameters``, ``flops``, ``gradients``, ``descent`` or ``agreement``;
            for a user's model ``output`` and ``gradients``.
        status: ``ok`` or ``failed``.
        detail: actual and expected result.
    """

    name: str
    status: Annotated[str, one_of("ok", "failed")]
    detail: str


class StepPreparation(Record, frozen=True, kw_only=True):
    """Options of a step's preparation.

    Attributes:
        checks: whether to run the checks first.
        save: folder for output and gradients as ``.npy`` files, for a comparison with another
            framework's; None does not save them.
        load: folder that another step was saved in, whose weights and inputs a user's model takes,
            where they have the same shapes.
        values: whether a model of the catalogue is saved with its weights and inputs, under the
            names of its framework, as a user's model is.
        timed: folder for the result of a timed sample of a user's model, each with other inputs;
            None keeps none.
        replays: folders with such results of other processes, whose inputs the step is run with.
        disturbance: largest relative change of the weights, each changed by a random amount.
        other_fusion: whether operators are fused in another way, see
            :meth:`~pydlbench.backends.steps.definition.StepModel.change_fusion`.
    """

    checks: bool = True
    save: str | None = None
    load: str | None = None
    values: bool = False
    timed: str | None = None
    replays: tuple[str, ...] = ()
    disturbance: float = 0.0
    other_fusion: bool = False


class StepFacts(Record, frozen=True, kw_only=True):
    """Facts about a prepared step. Times in seconds.

    Attributes:
        library: name and version of the framework.
        timing: ``steady`` (a CPU's call returns when it is done) or ``host-sync`` (the host waits
            for a GPU after each call).
        batch: images per step.
        output: shape of the output, NCHW or (batch, features); for a user's model, shape of its
            first output tensor.
        parameters: number of trained elements.
        inputs: inputs of a user's model, as ``--input`` takes them; empty if they are not plain
            tensors.
        setup_s: time of building, tracing, compiling and the first call.
        checks: results of the checks; empty if they were not requested.
        checks_s: duration of the checks.
        notes: remarks for the reader.
        environment: the framework's version, threads and settings.
        types: types of an ONNX file's tensors: ``fp32``, ``int8 QDQ``, ``mixed (fp16, fp32)``;
            types of the weights of another user's model if they are not float32; empty for all
            other steps, which compute in the requested precision.
    """

    library: str
    timing: str
    batch: int
    output: tuple[int, ...]
    parameters: int
    inputs: tuple[str, ...] = ()
    setup_s: float
    checks: tuple[Check, ...] = ()
    checks_s: float = 0.0
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    types: str = ""

    @property
    def wrong(self) -> str:
        """The failed checks with their details; empty if none failed."""
        failed = (check for check in self.checks if check.status != "ok")
        return "; ".join(f"{check.name}: {check.detail}" for check in failed)


class StepKernel:
    """A prepared step, with the same interface as a layer's kernel.

    A request's ``timing`` may select another way: on a GPU see ``steps.device.WAYS``; one of
    :data:`~pydlbench.records.trace.TRACES` runs the step traced, see ``steps.trace.TracedSteps``.

    Args:
        clock: times the step.
        facts: facts about the step.
        traced: records the step, and returns an object that runs it traced.
    """

    def __init__(
        self, clock: HostClock, facts: StepFacts, traced: Callable[[], TracedSteps]
    ) -> None:
        self.clock, self._record = clock, traced
        self._traced: TracedSteps | None = None
        self.facts = facts

    def trace(self) -> TraceFacts:
        """Run and record the step, so that traced samples can be requested.

        Raises:
            UnsupportedError: it cannot be traced, with the reason.
        """
        self._traced = self._record()
        return self._traced.facts

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples."""
        if self._traced is not None and request.timing in TRACES:
            return self._traced.sample(request)
        return self.clock.sample(request)


# -----------------------------------------------------------------------------
# The record of a step: its specification, its time and the results of its checks.


class StepRecord(Record, frozen=True, kw_only=True, rename={"time": "time_s"}):
    """One end-to-end row. Times in seconds.

    Attributes:
        spec: specification of the step, with its batch.
        status: ``ok``, ``skipped`` or ``failed`` (for example by a check).
        reason: why it was skipped or failed.
        images_per_s: images over the median; for a user's model, samples of its batch.
        samples_s: all samples in order of time, disturbed ones included.
        rounds_s: median by number of the round, or of the repetition for steps that are compared;
            steps that were interleaved share the numbers.
        ratios: ratios of its time to that of the first of the steps that were sampled alternately,
            one for each round, by number of the repetition. Empty for all other steps.
        swapped: seconds, and page faults, of the swapped calls of a step, each at its place in the
            timed steps; medians by number of the repetition. Empty if they are not known.
        inner: steps per sample.
        faults: page faults per step.
        busy: share of the threads' time in which they had a CPU, spinning included.
        threads: pinned threads of a CPU; None on a GPU.
        checks: results of the checks before the timing.
        output: shape of the output.
        parameters: number of trained elements.
        inputs: inputs of a user's model, as ``--input`` takes them; else empty.
        setup_s: time of building, tracing, compiling and the first step.
        checks_s: duration of the checks.
        library: name and version of the framework.
        environment: the framework's version, threads and settings.
        types: types of a user's model, see :class:`StepFacts`; else None.
        calls: calls of a traced step, the longest first; None if none was traced, as are the
            following fields.
        modules: modules of the calls, the longest first.
        between_calls_s: time of a traced step between its calls.
        dominant: the module that takes most of the step.
        program: a hash of the step's calls.
        trace: how the calls were timed.
        untraced: why the step was not traced; None if it was, or if that was not requested.
        notes: remarks for the reader.
        warnings: circumstances that make this row less reliable.
        disturbed: number of rounds during which other processes used the machine.
        contended: other work disturbed half of the rounds or more, and the others were shorter; the
            time is an upper bound.
        contention_reason: the counters behind ``contended``, in words.
        stop_reason: why sampling stopped, in words.
        time: time of a step (JSON: ``time_s``); None unless the status is ``ok``.
    """

    spec: StepSpec
    status: Status
    reason: str | None = None
    images_per_s: Annotated[float | None, shown("images/s", per_second, unit="1/s")] = None
    samples_s: tuple[float, ...] = ()
    rounds_s: Mapping[int, float] = msgspec.field(default_factory=dict)
    ratios: Mapping[int, tuple[float, ...]] = msgspec.field(default_factory=dict)
    swapped: tuple[Mapping[int, float], ...] = ()
    inner: int | None = None
    faults: Annotated[float | None, shown("faults/step", "{:.0f}".format)] = None
    busy: float | None = None
    threads: int | None = None
    checks: tuple[Check, ...] = ()
    output: tuple[int, ...] = ()
    parameters: int | None = None
    inputs: tuple[str, ...] = ()
    setup_s: float | None = None
    checks_s: float | None = None
    library: str | None = None
    environment: Mapping[str, Any] = msgspec.field(default_factory=dict)
    types: str | None = None
    calls: tuple[CallInContext, ...] | None = None
    modules: tuple[ModuleInContext, ...] | None = None
    between_calls_s: float | None = None
    dominant: Dominant | None = None
    program: str | None = None
    trace: Tracing | None = None
    untraced: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    disturbed: int = 0
    contended: bool = False
    contention_reason: str | None = None
    stop_reason: str | None = None
    time: TimeSummary | None = None

    embedded = ("spec",)
    promised = ("time",)
    omitted = (
        *("types", "calls", "modules", "between_calls_s", "dominant", "program"),
        *("trace", "untraced", "swapped", "ratios"),
    )

    @property
    def ok(self) -> bool:
        """Whether the row has a valid time (perhaps a contended one)."""
        return self.status == "ok" and self.time is not None


class StepRow(Record, frozen=True, kw_only=True):
    """A timed step of a model in a framework.

    Attributes:
        record: record of the step; its fields are merged into the object.
        title: title of the model.
        flops: FLOPs of a step: 2 x multiply-adds of convolutions and products, padding counted;
            None for a user's model.
    """

    record: StepRecord
    title: str = ""
    flops: Annotated[int | None, shown(unit="FLOP")] = None

    #: Columns of a table of steps.
    columns: ClassVar[str] = (
        "who record.spec.precision record.spec.phase record.spec.batch record.spec.device median "
        "record.time.interval record.time.n record.images_per_s tflops record.faults checks"
    )
    derived = ("tflops",)
    embedded = ("record",)
    unlisted = ("title",)

    @property
    def tflops(
        self,
    ) -> Annotated[float | None, shown("TFLOP/s", "{:.3g}".format, unit="TFLOP/s")]:
        """FLOPs over the median, in TFLOP/s."""
        time = self.record.time
        return None if time is None or self.flops is None else self.flops / time.median / 1e12

    @property
    def who(self) -> Annotated[str, shown("framework", right=False)]:
        """Framework and mode."""
        return f"{self.record.spec.framework} {self.record.spec.mode}"

    @property
    def group(self) -> tuple[int | None, str]:
        """Batch and phase, which the steps that were interleaved with it share."""
        return self.record.spec.batch, self.record.spec.phase

    @property
    def median(self) -> Annotated[str | None, shown("median")]:
        """The time, with a star if other work disturbed it."""
        time = self.record.time
        mark = "*" if self.record.contended else ""
        return None if time is None else f"{format_seconds(time.median)}{mark}"

    @property
    def checks(self) -> Annotated[str, shown("checks", right=False)]:
        """Summary of the checks before the timing."""
        wrong = [check.name for check in self.record.checks if check.status != "ok"]
        if wrong:
            return f"failed: {', '.join(wrong)}"
        return f"{len(self.record.checks)} ok" if self.record.checks else "none"
