"""Ops with their fields, and layers: problems of an op."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from numbers import Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError, UsageError, nearest, unknown_word
from pydlbench.words import PASSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Letters of the spatial sides; fewer sides are the last ones.
SIDES: Final = "dhw"
#: Default of a required field.
REQUIRED: Final = object()
#: Maximum number of dimensions. oneDNN supports twelve; with adjacent ones merged, six are enough.
MAX_DIMENSIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of an op.

    Attributes:
        name: Name of the layer's attribute.
        spelling: Text before the value in descriptors; empty if they do not contain the field.
        type: ``integer``; ``sides``, an integer for each spatial side, outermost first; ``real``,
            finite and not negative; ``signed``, any finite number; ``shape``, a tensor's sizes;
            ``sum``, integers that are written ``64+32``; ``order``, digits; ``word``; ``flag``.
        default: Default value; None if it follows from other fields.
        minimum: The smallest value of an integer, real, side or size.
        maximum: The largest value of an integer or real.
        above: Whether a real has to be above ``minimum``.
        choices: Valid words.
        offset: Difference to the number in descriptors; benchdnn counts dilations from zero.
        shown: Whether descriptors contain the field with its default value, too.
        derived: Whether the field always follows from other fields, and is not stored.
    """

    name: str
    spelling: str = ""
    type: str = "integer"
    default: Any = REQUIRED
    minimum: int = 1
    maximum: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()
    offset: int = 0
    shown: bool = False
    derived: bool = False

    def check(self, value: Any) -> Any:
        """Return a valid value as plain ints, floats and tuples.

        Integers of other libraries, such as NumPy, are accepted. Floats and booleans are not, since
        a silently changed size would be timed instead of the requested one.

        Raises:
            UsageError: The value is invalid.
        """
        return None if value is None and self.default is None else _CHECKS[self.type](self, value)

    def error(self, value: object, reason: str) -> UsageError:
        """Return the error for an invalid value."""
        return UsageError(f"{self.name}={value!r}: {reason}")


def _integer(field: Field, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise field.error(value, f"not a whole number; at least {field.minimum}") from None
    if number < field.minimum:
        raise field.error(value, f"too small; at least {field.minimum}")
    if number > field.maximum:
        raise field.error(value, f"too large; at most {field.maximum:.0f}")
    return number


def _sides(field: Field, value: Any) -> tuple[int | None, ...]:
    optional = field.default is None
    return tuple(None if side is None and optional else _integer(field, side) for side in value)


def _real(field: Field, value: Any) -> float:
    bound = f"{'above' if field.above else 'at least'} {field.minimum}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise field.error(value, f"not a number; {bound}")
    number = float(value) + 0.0  # a negative zero becomes zero
    if not math.isfinite(number):
        raise field.error(value, f"not finite; {bound}")
    if field.type == "real":
        if number < field.minimum or (field.above and number == field.minimum):
            raise field.error(value, f"too small; {bound}")
        if number > field.maximum:
            raise field.error(value, f"too large; at most {field.maximum:g}")
    return number


def _sizes(field: Field, value: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in value)
    except TypeError:
        raise field.error(value, "not a shape; nearest: a list of sizes") from None
    if len(sizes) > MAX_DIMENSIONS and field.type == "shape":
        raise field.error(sizes, f"too many dimensions; at most {MAX_DIMENSIONS}")
    if min(sizes, default=field.minimum) < field.minimum:
        raise field.error(sizes, f"too small; each at least {field.minimum}")
    return sizes


def _word(field: Field, value: Any) -> str:
    if value not in field.choices:
        choices = nearest(str(value), field.choices) or field.choices
        raise field.error(value, f"no such {field.name}; nearest: {', '.join(choices)}")
    return str(value)


def _flag(field: Field, value: Any) -> bool:
    if value not in (True, False):
        raise field.error(value, "neither 0 nor 1; nearest: 1")
    return bool(value)


_CHECKS: Final = {
    "integer": _integer,
    "sides": _sides,
    "real": _real,
    "signed": _real,
    "shape": _sizes,
    "sum": _sizes,
    "order": _sizes,
    "word": _word,
    "flag": _flag,
}


def format_value(field: Field, value: Any) -> str:
    """Return the text of a field's value in descriptors."""
    if field.type in ("real", "signed"):
        return repr(float(value)).removesuffix(".0")  # shortest exact text: 2, 0.75, 1e-05
    if field.type == "sum":
        return "+".join(map(str, value))
    if field.type == "order":
        return "".join(map(str, value))
    return str(int(value) - field.offset) if isinstance(value, int) else str(value)


Shape = tuple[int, ...]
Shapes = dict[str, Shape]
#: A tensor's sizes, each with its position.
Sizes = list[tuple[int, int]]

_LIMIT_BYTES: Final = 2**63
_WORD_BYTES: Final = 4  # float32, the widest precision that is timed, and int32
#: Roles of integers (int32).
INTEGERS: Final = ("labels", "indices")
#: Role of truth values: bytes that are 0 or 1.
MASK: Final = "mask"
#: Bytes of an element by the type of a tensor that is the same in every precision.
WHOLE_TYPES: Final = {"int64": 8, "int32": 4, "uint8": 1, "bool": 1}
#: Why an op has no native row on a GPU.
NO_CUDA_KERNEL: Final = "there is no CUDA kernel for it"


class Functions:
    """NumPy's functions for references, and two that it lacks."""

    def __getattr__(self, name: str) -> Any:
        import numpy as np

        return getattr(np, name)

    def sigmoid(self, x: Any) -> Any:
        """Return ``1 / (1 + exp(-x))``."""
        return 0.5 * (1 + self.tanh(0.5 * x))

    def erf(self, x: Any) -> Any:
        """Return the error function, one number at a time."""
        return self.vectorize(math.erf, otypes=[float])(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of an op.

    A role that is both read and written stands for two tensors, a value and its gradient, unless it
    is among ``updates``.

    Attributes:
        reads: Roles of the tensors read; a function if they depend on the layer's fields.
        writes: Roles of the tensors written, the main result first.
        updates: Roles that are read and overwritten.
        flops: FLOPs of a layer; a number is per element of the largest tensor. An addition,
            multiplication, division, comparison, root, power, exponential or logarithm counts as
            one. Operations per channel, image or tensor are not counted.
        executed: FLOPs of a direct kernel, if they are fewer.
        touched: Elements of the tensors read that the result depends on, by role; all elements of
            roles that are missing.
        written: Elements of overwritten tensors that are written, by role; all of missing ones.
    """

    reads: Sequence[str] | Callable[[Layer], Sequence[str]]
    writes: Sequence[str] | Callable[[Layer], Sequence[str]]
    updates: tuple[str, ...] = ()
    flops: int | Callable[[Layer], int] = 0
    executed: Callable[[Layer], int] | None = None
    touched: Callable[[Layer], Mapping[str, int]] | None = None
    written: Callable[[Layer], Mapping[str, int]] | None = None

    @property
    def per_element(self) -> int:
        """FLOPs per element, of a pass whose count is per element."""
        assert isinstance(self.flops, int)
        return self.flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Shapes of operands in the descriptors of an op.

    Attributes:
        minimum: Minimum number of shapes; 0 if the fields may be given instead, as the op's own
            descriptors do.
        maximum: Maximum number of shapes.
        dimensions: Minimum number of dimensions of each shape.
        read: Returns values of the op's fields for shapes, each size with its position.
        write: Returns the shapes of a layer.
    """

    minimum: int
    maximum: int
    dimensions: int = 1
    read: Callable[[Op, list[Sizes]], dict[str, Any]]
    write: Callable[[Layer], Sequence[Shape]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Op:
    """One entry of the table.

    Attributes:
        name: Name among the ops of its kind.
        kind: Kind of the op's layers in results, without the number of sides if it has windows.
        fields: Fields in the order of descriptors.
        shapes: Returns the shapes of tensors by role, in plain layouts (images are NC and the
            sides, outermost first). A gradient has the role and shape of its tensor.
        passes: Passes by name.
        training: The forward pass in training, if it differs from inference.
        reference: The forward pass: returns ``dst`` for functions (:class:`Functions`), a layer and
            its tensors by role, or all tensors by role that the pass in training writes.
        convert: Converts the arguments of a layer to values of its fields.
        settle: Checks a layer's fields, and fills in missing ones.
        other_fields: Fields that descriptors may have in addition, such as benchdnn's ``sic``.
        merge: Replaces the values of ``other_fields`` by values of ``fields``.
        key: Name of the op in the table.
        prefix: Text that starts the op's descriptors.
        written_prefix: Returns the prefix of a layer's descriptor.
        operands: Shapes of operands in descriptors.
        output: The field with sides that follows from all others.
        sizes_first: Whether descriptors group the fields by side.
        shown: Whether descriptors contain a field that has its default value.
        batch: Returns the minibatch of a layer; None if layers have no minibatch, which
            counts as one.
        scaled: Returns the layer's fields for another minibatch.
        other_shapes: Returns further shapes that tensors may have, by role.
        native: Returns the fields of the native problem by name.
        attributes: Further attributes of layers by name.
        multiply_adds: Whether the FLOPs are the multiply-adds that publications count.
        memory_bound: Whether memory rather than arithmetic limits the op.
        exact: Roles that are float32 in every precision: parameters of a normalisation, and sums
            over a whole tensor.
        whole: Types of roles with whole numbers in every precision: ``int64``.
        positive: Roles whose elements must be above zero: radicands and divisors.
        signs: Roles whose elements are 1 or -1, the first one -1: factors of many numbers, or of an
            overwritten tensor, which would otherwise become denormal after many executions.
            Verification then cannot tell a product from a quotient.
        distinct: Whether no two indices of a table are equal.
        trained: Roles of trained tensors.
        no_gpu: Why the op has no native row on a GPU; empty if it may have one.
        windows: Whether windows slide over one to three sides; their number follows the kind.
        elementwise: Whether each element depends only on operands at the same position, so that the
            order of elements in memory does not matter.
        spread: Whether the formula or slope changes within [-8, 8), at 3 or 6 for some ops.
        form: Operands of a memory-bound op: ``images``, ``rows`` along their last axis, rows of
            logits (``flat``), ``weights``.
    """

    name: str
    kind: str
    fields: tuple[Field, ...]
    shapes: Callable[[Layer], Shapes]
    passes: Mapping[str, Pass]
    training: Pass | None = None
    reference: Callable[[Any, Layer, Any], Any]
    convert: Callable[[Op, dict[str, Any]], dict[str, Any]] = lambda _, values: values
    settle: Callable[[dict[str, Any]], None] = lambda _: None
    other_fields: tuple[Field, ...] = ()
    merge: Callable[[dict[str, Any]], None] = lambda _: None
    key: str = ""
    prefix: str = ""
    written_prefix: Callable[[Layer], str] = lambda layer: layer.entry.prefix
    operands: Operands | None = None
    output: str = ""
    sizes_first: bool = False
    shown: Callable[[Layer, Field], bool] = lambda _layer, _field: False
    batch: Callable[[Layer], int] | None = lambda layer: int(layer.value("batch"))
    scaled: Callable[[Layer, int], dict[str, Any]] = lambda _, batch: {"batch": batch}
    other_shapes: Callable[[Layer], Mapping[str, Shape]] = lambda _: {}
    native: Callable[[Layer], dict[str, Any]] = lambda layer: {"op": layer.op, **layer.fields}
    attributes: Mapping[str, Callable[[Layer], Any]] = dataclass_field(default_factory=dict)
    multiply_adds: bool = False
    memory_bound: bool = False
    exact: frozenset[str] = frozenset()
    whole: Mapping[str, str] = dataclass_field(default_factory=dict)
    positive: frozenset[str] = frozenset()
    signs: frozenset[str] = frozenset()
    distinct: bool = False
    trained: tuple[str, ...] = ()
    no_gpu: str = ""
    windows: bool = False
    elementwise: bool = False
    spread: bool = False
    form: str = "images"

    @property
    def in_one_order(self) -> bool:
        """Whether the tensors have a single layout, independent of the layout of images."""
        return self.form != "images"

    @property
    def operand_count(self) -> int:
        """Number of tensors that the forward pass reads, if it is the same for all layers."""
        reads = self.passes["forward"].reads
        assert not callable(reads)
        return len(reads)

    @property
    def sided(self) -> tuple[Field, ...]:
        """Fields of descriptors with a value for each side."""
        return tuple(field for field in self.fields if field.type == "sides" and field.spelling)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Spellings of the fields in descriptors, in order."""
        return tuple(
            field.spelling + side
            for field in self.fields
            if field.spelling
            for side in (SIDES if field.type == "sides" else ("",))
        )

    def shows(self, layer: Layer, field: Field) -> bool:
        """Whether a layer's descriptor contains a field."""
        if field.shown or field.default is REQUIRED or self.shown(layer, field):
            return True
        if field.default is None:
            return False
        value = getattr(layer, field.name)
        if field.type == "sides":
            return any(side != field.default for side in value)
        return bool(value != field.default)

    def build(self, name: str | None = None, /, **given: Any) -> Layer:
        """Return a layer.

        Args:
            name: Name of the layer in tables.
            given: Values of fields by name.

        Raises:
            UsageError: A field does not exist or is missing, or the layer is invalid.
        """
        given = self.convert(self, given)
        names = [field.name for field in self.fields]
        for key, value in given.items():
            if key not in names:
                choices = f"it has {', '.join(nearest(key, names) or names)}"
                raise UsageError(f"{key}={value!r}: {self.key} has no such field; {choices}")
        values: dict[str, Any] = {}
        for field in self.fields:
            value = given.get(field.name, field.default)
            if value is REQUIRED:
                raise UsageError(f"{field.name}: {self.key} needs it; it has {', '.join(names)}")
            values[field.name] = field.check(value)
        self.settle(values)
        layer = Layer(self, tuple(values[key] for key in names), name)
        _check_total(layer.shapes())
        return layer


#: Suffix of the names of ops whose result overwrites ``src``.
IN_PLACE: Final = "-in-place"


def in_place_op(op: Op, **changes: Any) -> Op:
    """Return the op whose result overwrites ``src``, with a forward pass only.

    Args:
        op: Op whose forward pass reads ``src`` and writes ``dst`` with as many elements.
        changes: Further attributes of the op that differ.
    """
    name = op.name + IN_PLACE
    forward = op.passes["forward"]
    return replace(
        op,
        name=name,
        key=op.key + IN_PLACE,
        prefix=f"{op.key}{IN_PLACE}:",
        passes={"forward": replace(forward, writes=("src",), updates=("src",))},
        reference=lambda np, layer, t: {"src": op.reference(np, layer, t)},
        native=lambda layer: {**op.native(layer), "op": name},
        no_gpu="kernels in place are there on CPUs only",
        **changes,
    )


def _check_total(shapes: Shapes) -> None:
    """Check that the bytes of all tensors in fp32 fit a signed 64-bit integer."""
    elements = {role: math.prod(shape) for role, shape in shapes.items()}
    total = sum(elements.values()) * _WORD_BYTES
    if total >= _LIMIT_BYTES:
        largest = max(elements, key=lambda role: elements[role])
        raise UsageError(
            f"sizes overflow: {total:.3g} bytes in fp32, most of them in {largest}; "
            f"at most 2**63 - 1 bytes"
        )


@functools.cache
def _places(op: Op) -> dict[str, int]:
    """Return the index of each field in a layer's values."""
    return {field.name: number for number, field in enumerate(op.fields)}


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """A problem of an op; fields and further attributes of the op are attributes of the layer.

    Attributes:
        entry: Op of the layer.
        values: Values of the op's fields, in order.
        name: Name of the layer in tables.
    """

    entry: Op
    values: tuple[Any, ...]
    name: str | None = None

    def __getattr__(self, name: str) -> Any:
        place = _places(self.entry).get(name)
        if place is not None:
            return self.values[place]
        if name in self.entry.attributes:
            return self.entry.attributes[name](self)
        raise AttributeError(f"{self.entry.key} has no {name}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.independent_fields.items())
        return f"build_layer({self.entry.key!r}, {fields}, name={self.name!r})"

    @property
    def op(self) -> str:
        """Name of the op among the ops of its kind: ``conv``, ``relu``, ``add``."""
        return self.entry.name

    @property
    def kind(self) -> str:
        """Kind in results: ``conv2d``, ``gemm``, ``pointwise``."""
        return f"{self.entry.kind}{self.sides}d" if self.entry.windows else self.entry.kind

    @property
    def sides(self) -> int:
        """Number of sides of its images; two if its fields have none."""
        return next((len(getattr(self, field.name)) for field in self.entry.sided), 2)

    def value(self, field: str) -> Any:
        """Return the value of a field, even if a method or property has the same name."""
        return self.values[_places(self.entry)[field]]

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields by name."""
        return dict(zip(_places(self.entry), self.values, strict=True))

    @property
    def independent_fields(self) -> dict[str, Any]:
        """Its fields without those that follow from others."""
        fields = self.fields
        return {field.name: fields[field.name] for field in self.entry.fields if not field.derived}

    @property
    def batch(self) -> int:
        """The minibatch; 1 if there is none."""
        return self.entry.batch(self) if self.entry.batch is not None else 1

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of its passes."""
        return tuple(self.entry.passes)

    @property
    def problem(self) -> str:
        """The canonical descriptor."""
        return _write(self)

    def replace(self, **changes: Any) -> Layer:
        """Return the same layer with some fields, or the name, changed.

        Raises:
            UsageError: The layer is invalid.
        """
        name = changes.pop("name", self.name)
        return self.entry.build(name, **(self.independent_fields | changes))

    def with_batch(self, batch: int) -> Layer:
        """Return the same layer for another minibatch; unchanged if it has none."""
        return self if self.entry.batch is None else self.replace(**self.entry.scaled(self, batch))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form that :func:`pydlbench.ops.table.read_layer` reads back."""
        fields = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.independent_fields.items()
        }
        return {"op": self.entry.key, **fields, "name": self.name}

    def problem_fields(self) -> dict[str, Any]:
        """Return the fields of the native problem, by name."""
        return self.entry.native(self)

    # -------------------------------------------------------------------------
    # Tensors.

    def shapes(self) -> Shapes:
        """Return the shape of each tensor by role, in plain layouts (images are NCHW)."""
        return self.entry.shapes(self)

    def other_shapes(self, role: str) -> tuple[Shape, ...]:
        """Return further shapes that a tensor of this role may have."""
        shape = self.entry.other_shapes(self).get(role)
        return () if shape is None else (shape,)

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of the tensors that a pass reads.

        Args:
            pass_: Name of one of the layer's passes.
            propagation: ``inference`` or ``training``, for the forward pass.

        Raises:
            UsageError: There is no such pass.
            UnsupportedError: The pass does not exist for this layer.
        """
        return self._roles(self.pass_of(pass_, propagation).reads)

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of the tensors that a pass writes, its main result first."""
        return self._roles(self.pass_of(pass_, propagation).writes)

    def result(self, pass_: str) -> str:
        """Return the role of the main tensor that a pass writes."""
        return self.writes(pass_)[0]

    def operands(self, pass_: str) -> dict[str, int]:
        """Return the elements of each tensor of a pass by role."""
        shapes = self.shapes()
        return {role: math.prod(shapes[role]) for role in (*self.reads(pass_), *self.writes(pass_))}

    def in_float32(self, role: str) -> bool:
        """Whether a tensor is float32 in every precision."""
        return role in self.entry.exact

    @property
    def multiply_adds(self) -> bool:
        """Whether its FLOPs are the multiply-adds that publications count."""
        return self.entry.multiply_adds

    @property
    def weight_elements(self) -> int:
        """Elements of the trained tensors; zero if there are no weights."""
        shapes = self.shapes()
        return sum(math.prod(shapes[role]) for role in self.entry.trained if role in shapes)

    # -------------------------------------------------------------------------
    # Counts.

    def flops(self, pass_: str) -> int:
        """Return the algorithmic FLOPs, including taps on padding; a multiply-add counts as two."""
        step = self.pass_of(pass_)
        if callable(step.flops):
            return step.flops(self)
        return step.flops * max(math.prod(shape) for shape in self.shapes().values())

    def flops_executed(self, pass_: str) -> int:
        """Return the FLOPs of a direct kernel, without taps on padding."""
        step = self.pass_of(pass_)
        return self.flops(pass_) if step.executed is None else step.executed(self)

    def bytes(self, pass_: str, itemsize: int | Mapping[str, float]) -> int:
        """Return the least bytes moved: operands are read once, and the result is written once.

        Only elements that the result depends on are read (a 1x1 kernel with stride 2 reads a
        quarter of its source). The result is written as a whole: backward-data writes zeros where
        no output read. Not counted are second reads, which kernels avoid only if the tensor fits
        into a cache, and data that a library keeps for the backward pass in its own format.

        Args:
            pass_: Name of one of the layer's passes.
            itemsize: Bytes per element, perhaps by role; float32 roles, labels and indices always
                have four, and masks one.
        """
        step = self.pass_of(pass_)
        elements = {role: math.prod(shape) for role, shape in self.shapes().items()}
        touched = elements | dict(step.touched(self) if step.touched is not None else {})
        written = elements | dict(step.written(self) if step.written is not None else {})
        wide = self.entry.exact.union(INTEGERS)
        given = itemsize if isinstance(itemsize, Mapping) else dict.fromkeys(elements, itemsize)
        sizes = {**given, **dict.fromkeys(wide, _WORD_BYTES), MASK: 1}
        sizes |= {role: WHOLE_TYPES[kind] for role, kind in self.entry.whole.items()}
        read = sum(touched[role] * sizes[role] for role in self.reads(pass_))
        return math.ceil(read + sum(written[role] * sizes[role] for role in self.writes(pass_)))

    def reference(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the forward pass in float64.

        Args:
            tensors: Tensors that the forward pass reads, by role.

        Returns:
            ``dst``, and the other results of a forward pass in training, by role.
        """
        import numpy as np

        wide = {role: np.asarray(tensor, np.float64) for role, tensor in tensors.items()}
        result = self.entry.reference(Functions(), self, SimpleNamespace(**wide))
        return result if isinstance(result, dict) else {"dst": result}

    def pass_of(self, pass_: str, propagation: str = "inference") -> Pass:
        """Return a pass.

        Raises:
            UsageError: There is no such pass.
            UnsupportedError: The pass exists, but not for this layer.
        """
        passes = self.entry.passes
        if pass_ not in passes:
            if pass_ in PASSES:
                what = self.op if self.kind == "pointwise" else self.kind
                raise UnsupportedError(
                    f"{pass_}: {what} has no such pass; it has {', '.join(passes)}"
                )
            raise unknown_word(f"{pass_}: no such pass", pass_, passes)
        training = self.entry.training
        if training is not None and (pass_, propagation) == ("forward", "training"):
            return training
        return passes[pass_]

    def _roles(self, roles: Sequence[str] | Callable[[Layer], Sequence[str]]) -> tuple[str, ...]:
        return tuple(roles(self) if callable(roles) else roles)


# -----------------------------------------------------------------------------
# The descriptor of a layer; :mod:`pydlbench.ops.grammar` reads it.


def _write(layer: Layer) -> str:
    """Return the canonical descriptor of a layer, without its name.

    Fields with their default values are left out, and sides if all are equal.
    """
    op = layer.entry
    shapes = op.operands.write(layer) if op.operands is not None else []
    text = op.written_prefix(layer) + ":".join("x".join(map(str, shape)) for shape in shapes)
    sides = _sides_to_write(layer)
    groups: Sequence[Sequence[Field]] = [[field] for field in op.fields if field.spelling]
    if op.sizes_first:  # grouped by side, not by field
        flat = [field for field in op.fields if field.spelling and field.type != "sides"]
        groups = [*([field] for field in flat), list(op.sided)]
    for group in groups:
        for side in sides if group[0].type == "sides" else (0,):
            for field in group:
                value = getattr(layer, field.name)
                if op.shows(layer, field):
                    if field.type == "sides":
                        letter = SIDES[side - len(value)]
                        text += f"{field.spelling}{letter}{value[side] - field.offset}"
                    else:
                        text += field.spelling + format_value(field, value)
    return text


def _sides_to_write(layer: Layer) -> range:
    fields = [getattr(layer, field.name) for field in layer.entry.sided if field.spelling]
    per_side = list(zip(*fields, strict=True))
    return range(1 if len(set(per_side)) == 1 else len(per_side))
