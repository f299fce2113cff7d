"""Events of a trace in Chrome's format, with the arguments that profilers note."""

from typing import Annotated, Any, Final

import msgspec

_Time = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "external_lower": "external id",
        "sequence": "Sequence number",
        "types": "Input type",
        "shapes": "Input Dims",
        "strides": "Input Strides",
        "concrete": "Concrete Inputs",
        "group": "Process Group Ranks",
    },
):
    """What a profiler notes of an event. Other keys are not read.

    Attributes:
        external: number of the operator; of old files of the launch.
        external_lower: the same under another name.
        correlation: number that a launch shares with what it launched.
        sequence: autograd's sequence number.
        types: of the operands, in C++'s words.
        shapes: of the operands.
        strides: of the operands, in elements.
        concrete: values of what is no tensor.
        device: number of the device.
        bytes: that a copy moves.
        kernel: that a launch puts into the queue, by its name.
        grid: blocks of a kernel.
        block: threads of a block.
        group: ranks that take part in a collective.
        provider: onnxruntime's execution provider.
        op_name: onnxruntime's operator.
        input_type_shape: onnxruntime's operands.
        output_type_shape: onnxruntime's results.
    """

    external: Any = None
    external_lower: Any = None
    correlation: Any = None
    sequence: Any = None
    types: Any = None
    shapes: Any = None
    strides: Any = None
    concrete: Any = None
    device: Any = None
    bytes: Any = None
    kernel: Any = None
    grid: Any = None
    block: Any = None
    group: Any = None
    provider: Any = None
    op_name: Any = None
    input_type_shape: Any = None
    output_type_shape: Any = None

    def __post_init__(self) -> None:
        """Use one name of the external id, and no ids that cannot be keys."""
        if self.external is None:
            self.external = self.external_lower
        if not isinstance(self.external, (int, str)):
            self.external = None
        if not isinstance(self.correlation, (int, str)):
            self.correlation = None
        if not isinstance(self.device, (int, str)):
            self.device = None


#: Arguments of an event without any.
NO_ARGUMENTS: Final = Arguments()


class ChromeEvent(msgspec.Struct, gc=False):
    """An event of a trace. Times in microseconds.

    Attributes:
        name: of what ran.
        ph: ``X`` of what has a duration.
        cat: category: ``cpu_op``, ``kernel``, ``user_annotation``, ``python_function``, ``Node``.
        ts: when it began.
        dur: how long it took.
        pid: of the process.
        tid: of the thread.
        args: what was noted of it.
    """

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: _Time = 0.0
    dur: _Duration = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments | None = None

    @property
    def noted(self) -> Arguments:
        """The arguments; none of them is known if the profiler noted none."""
        return self.args or NO_ARGUMENTS

    @property
    def end(self) -> float:
        """When it ended."""
        return self.ts + self.dur
