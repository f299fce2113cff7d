r"""Lists of layers in files: names and descriptors, with options as in benchdnn's input files.

Words are separated by blanks and lines, ``#`` starts a comment, and ``\`` continues a list of
values in the next line. An option holds until it is given again, or until ``--reset``;
``--batch=FILE`` includes a file of the same folder. Benchdnn runs a problem with all combinations
of the values.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pydlbench.errors import UnsupportedError, UsageError, nearest, nearest_file, unknown_word
from pydlbench.ops import grammar
from pydlbench.ops.descriptor import POOL_MODES, looks_like_problem, parse_problem
from pydlbench.ops.fused import ACTIVATIONS, NOTHING_FUSED, canonical_fusion
from pydlbench.ops.op import Layer
from pydlbench.ops.table import OPS, build_layer
from pydlbench.words import MIXED_TYPES

_SHAPES: Final = re.compile("^[0-9][0-9x:]*")
# A size of 0: of a shape, or a field.
_EMPTY: Final = re.compile(
    r"^(?:[0-9x:]*[x:])?0+(?=[x:n_]|$)|^[a-z0-9_]*?(?:mb|[io][cdhw])0+(?![0-9])"
)
_MAX_CHARACTERS: Final = 1 << 24  # maximum size of a list of layers

# -----------------------------------------------------------------------------
# Benchdnn's drivers and their options.

_CONVOLUTIONS: Final = ("direct", "auto", "wino", "winograd")
# The affixes in the library's names of algorithms, which benchdnn's lack.
_AFFIXES: Final = re.compile(
    "^(?:convolution|deconvolution|pooling|eltwise|binary|reduction|resampling|softmax|lrn)_(?=.)"
    "|_(?:use_)?dst(?:_for_bwd)?$|_channels$"
)
# Ops by oneDNN's names of functions of one tensor, with the alpha and the beta that they have. For
# a zero all values are the same function, except for the slope of relu.
_FUNCTIONS: Final[Mapping[str, tuple[str, float, float]]] = {
    **ACTIVATIONS,
    "soft_relu": ("softplus", 1, 0),
    "pow": ("elementwise:power", 1, 0),
    **dict.fromkeys(("clip", "clip_v2"), ("hardtanh", -1, 1)),
    **{name: (f"elementwise:{name}", 0, 0) for name in ("abs", "exp", "log", "sqrt", "square")},
}
# Prefixes of descriptors by driver and algorithm, the driver's default algorithm first; kinds of
# poolings. Fields after a bar follow the shapes.
_DRIVERS: Final[Mapping[str, Mapping[str, str]]] = {
    "conv": dict.fromkeys(_CONVOLUTIONS, ""),
    "deconv": dict.fromkeys(_CONVOLUTIONS, "deconv:"),
    "ip": {"": "ip:"},
    "matmul": {"": ""},
    "pool": {mode: mode for mode in POOL_MODES}
    | {"avg_exclude_padding": "avg_np", "avg_include_padding": "avg_p"},
    "bnorm": {"": "batchnorm:"},
    "lnorm": {"": "layernorm:"},
    "gnorm": {"": "groupnorm:"},
    "prelu": {"": "elementwise:leaky-relu:"},
    "shuffle": {"": "move:permute:|by0213"},
    "lrn": {"across": "lrn:"},
    "softmax": dict.fromkeys(("softmax", "accurate", "accurate_inf_as_zero"), "softmax:")
    | dict.fromkeys(("logsoftmax", "log"), "log-softmax:"),
    "eltwise": {name: f"{op}:" for name, (op, *_) in _FUNCTIONS.items()},
    "binary": {name: f"elementwise:{name}:" for name in ("add", "mul", "max", "min", "div")}
    | {"sub": "elementwise:add:|by-1", "select": "elementwise:select:"},
    "reduction": {name: f"reduction:{name}:" for name in ("sum", "mean", "max", "min")}
    | {"mul": "reduction:prod:"}
    | dict.fromkeys(("norm_lp_max", "norm_lp_sum"), "reduction:norm:"),
    "resampling": {name: f"resize:{name}:" for name in ("nearest", "linear")},
    "rnn": {"vanilla_rnn": "rnn-:", "vanilla_lstm": "lstm:", "lbr_gru": "gru:"}
    | {"vanilla_gru": "vanilla-gru:"},
    "concat": {"": "concat:"},
    "sum": {"": "elementwise:add:"},
}
_OPERANDS_OF_SELECT: Final = 3
_WITHOUT_OP: Final = ("brgemm", "graph", "reorder", "sdpa", "zeropad")
# Ops of descriptors without a prefix, where the op depends on the descriptor.
_OWN_OPS: Final = {"conv": "conv", "matmul": "gemm", "pool": "pool"}
_PASSES: Final = {
    "FWD_D": ("forward", "training"),
    "FWD_B": ("forward", "training"),
    "FWD_I": ("forward", "inference"),
    "BWD_D": ("backward-data", "inference"),
    "BWD_DW": ("backward-data", "inference"),
    "BWD_W": ("backward-weights", "inference"),
    "BWD_WB": ("backward-weights", "inference"),
}
_PRECISIONS: Final = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}
# Values of options that leave the layer as it is, or that are read elsewhere; with all other values
# something else is computed.
_KNOWN_VALUES: Final = {
    "attr-fpmath": "|strict",
    "attr-dropout": "",
    **dict.fromkeys(("with-peephole", "with-projection"), "true|false|1|0"),
    "direction": "left2right|concat",
    "flags": "[CHO]*",
    **dict.fromkeys(("encoding", "grouped"), ""),
    "stag": "any|ab(c(d(ef?)?)?)?x?",  # of products: an order that is not transposed
    "strides": ":*",
    "scales": "1(:1)*",
    "attr-acc-mode": "|strict|relaxed|any|f32",
    "attr-rounding-mode": "",
    "skip-nonlinear": "false|0",
}
# Parts of an LSTM by the option that adds them.
_OF_LSTM: Final = {"with-peephole": "peephole", "with-projection": "projected"}
# Options with numbers, by driver; --mb is one of all drivers.
_NUMBERS: Final = {
    **dict.fromkeys(("softmax", "concat"), ("axis",)),
    "rnn": ("l", "t"),
    "shuffle": ("axis", "group"),
    "sum": ("sdt",),
}
_TYPES: Final = ("dt", "sdt", "ddt", "cfg")
# Options with fused operations, which convolutions and products have; poolings have integers, too.
_FUSED: Final = ("attr-scales", "attr-zero-points", "bia-dt", "attr-post-ops")
# Options that are honoured of products only.
_OF_PRODUCTS: Final = ("stag", "strides", "bia-dt", "bia-mask")
_WITH_FUSED: Final = ("conv", "deconv", "ip", "matmul")
# Drivers of problems with a batch, which is 2 in benchdnn if a problem has none.
_WITH_BATCH: Final = (*_WITH_FUSED[:3], "pool", "bnorm", "gnorm", "lrn", "resampling", "rnn")
_WITH_AXIS: Final = ("softmax", "concat", "shuffle")
# One operation of ``--attr-scales`` or ``--attr-zero-points``; numbers do not matter to the time.
_ATTRIBUTE: Final = re.compile(
    r"(src|wei|dst)(?::(common|per_oc))?(?::[-0-9.e]+\*?)?(?::(?:f32|s32))?"
)
_HONOURED: Final = (
    *_KNOWN_VALUES,
    *_TYPES,
    *_FUSED,
    "dir",
    "prop",
    "alg",
    "activation",
    "mb",
    "l",
    "t",
    "axis",
    "group",
    "alpha",
    "beta",
    "p",
    "eps",
    "bia-mask",
    "wtag",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLayer:
    """A layer that the user selected.

    Attributes:
        layer: The layer.
        passes: Passes with their propagation that a list asks for; empty if it does not say.
        precisions: Precisions that a list asks for; empty if it does not say.
        fusions: Fused operations that a list asks for; empty if it does not say.
        changed: Options of a list with which something else than the layer is computed; may be
            empty.
        omitted: Values of a list's options for which there is no layer, beside others.
    """

    layer: Layer
    passes: tuple[tuple[str, str], ...] = ()
    precisions: tuple[str, ...] = ()
    fusions: tuple[str, ...] = ()
    changed: str = ""
    omitted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """A word of a list, or of the command line.

    Attributes:
        text: Name or descriptor.
        where: Prefix of error messages: file and line.
        op: Driver of benchdnn or prefix of descriptors; empty if descriptors have their own.
        options: Values of benchdnn's options in force.
    """

    text: str
    where: str
    op: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def described(self) -> bool:
        """Whether the text is a descriptor rather than a name."""
        recurrent = re.match("(?:[ltd]|s[il]c|d[hi]c)[0-9]", self.text)
        return looks_like_problem(self.text) or bool(self.op and recurrent) or self.op == "graph"

    def layers(self, pool: str | None) -> list[ListedLayer]:
        """Return the layers that the descriptor stands for, one for each algorithm.

        Raises:
            UsageError: The descriptor is malformed.
            UnsupportedError: There is no op for it.
        """
        options = self.options
        has_prefix = re.match("[A-Za-z][A-Za-z-]*:", self.text)
        found: dict[Layer, None] = {}
        omitted: dict[str, None] = {}
        if self.op in _DRIVERS and self.op != "concat" and _EMPTY.search(self.text):
            raise UnsupportedError(f"{self.text}: has no elements; nearest: sizes of at least 1")
        for prefix, mode in [("", pool)] if has_prefix else self._prefixes(pool, omitted):
            before, _, fields = prefix.partition("|")
            text = self.text if has_prefix else self._with_all_shapes()
            text = before + _SHAPES.sub(rf"\g<0>{fields}", text, count=1)
            layer = parse_problem(text, pool=mode)
            if not has_prefix and _OWN_OPS.get(self.op, layer.entry.key) != layer.entry.key:
                raise UsageError(f"{self.text}: not of --op {self.op}; nearest: another --op")
            if self.op in ("gnorm", "lnorm"):
                batch = self._number("mb") if self.op == "gnorm" else 0
                found |= dict.fromkeys(
                    variant.with_batch(batch or variant.batch)
                    for variant in _by_flags(layer, options.get("flags", ("",)))
                )
                continue
            variants: list[dict[str, Any]] = [{}]
            if layer.kind == "recurrent":
                both = "concat" in options.get("direction", ())
                sizes = {"layers": self._number("l"), "steps": self._number("t")}
                sizes |= {"directions": 2 if both else 0}
                variants = [{key: value for key, value in sizes.items() if value}]
                variants = [{**variants[0], **parts} for parts in self._parts(layer, omitted)]
            elif layer.kind == "gemm" and "wtag" in options:
                variants = [{"weights_tag": _order(tag, self.op)} for tag in options["wtag"]]
            batch = 0 if self.op in _WITH_AXIS else self._number("mb")
            for sizes in variants:
                found[layer.replace(**sizes).with_batch(batch or layer.batch)] = None
        names = (*options.get("dir", ()), *options.get("prop", ()))
        passes = dict.fromkeys(_PASSES[name.upper()] for name in names if name)
        if self.op == "bnorm" and options.get("flags"):
            # The flag G says that statistics are given, as in inference.
            given = "inference" if all("G" in flag for flag in options["flags"]) else "training"
            passes = dict.fromkeys(
                (pass_, given if pass_ == "forward" else kind) for pass_, kind in passes
            )
        precisions, changed = self._precisions(omitted)
        fusions, unknown = self._fusions(omitted)
        return [
            ListedLayer(
                layer=layer,
                passes=tuple(passes),
                precisions=precisions,
                fusions=fusions,
                changed=" ".join(filter(None, [changed, unknown])),
                omitted=" ".join(omitted),
            )
            for layer in found
        ]

    def _parts(self, layer: Layer, omitted: dict[str, None]) -> list[dict[str, bool]]:
        """Return the fields of an LSTM's parts with all combinations of their options.

        Args:
            layer: The recurrent layer. Cells other than an LSTM have no such fields.
            omitted: Receives combinations that the layer cannot have.

        Raises:
            UnsupportedError: The layer can have no combination.
        """
        given = {option: self.options[option] for option in _OF_LSTM if option in self.options}
        found = []
        for words in itertools.product(*given.values()):
            pairs = [*zip(given, words, strict=True)]
            parts = {_OF_LSTM[option]: word in ("true", "1") for option, word in pairs}
            if layer.op != "lstm":
                fits, parts = not any(parts.values()), {}
            else:
                fits = layer.state == layer.hidden or parts.get("projected", True)
            if fits:
                found.append(parts)
            else:
                text = " ".join(f"--{option}={word}" for option, word in pairs)
                omitted[f"{layer.op} {text}"] = None
        if not found:
            text = " ".join(f"--{option}={','.join(words)}" for option, words in given.items())
            why = f"{layer.op} has no such parts; nearest: --alg=VANILLA_LSTM"
            if layer.op == "lstm":
                why = f"states of {layer.state} are projected; nearest: --with-projection=true"
            raise UnsupportedError(f"{text}: {why}")
        return found

    def _with_all_shapes(self) -> str:
        """Return the descriptor with the shapes of all operands, in the form of our ops."""
        if self.op == "sum":
            number = self._sources()
            if number not in (2, 3):
                nearest_types = "f32:f32" if number < 2 else "f32:f32:f32"
                raise UnsupportedError(f"--sdt: a sum of {number}; nearest: --sdt={nearest_types}")
            return _SHAPES.sub(":".join([r"\g<0>"] * number), self.text, count=1)
        if self.op not in _WITH_AXIS:
            return self.text
        axis, groups = self._number("axis", 1), self._number("group", 1)
        along = partial(_along, axis=axis, op=self.op, groups=groups, batch=self._number("mb"))
        text = _SHAPES.sub(along, self.text, count=1)
        if text == _SHAPES.sub("", self.text):
            raise UnsupportedError(f"{self.text}: has no elements; nearest: sizes of at least 1")
        return text

    def _sources(self) -> int:
        """Return the number of summed tensors."""
        return self.options.get("sdt", ("f32:f32",))[0].count(":") + 1

    def _number(self, option: str, default: int = 0) -> int:
        """Return the value of an option.

        Raises:
            UsageError: It is no number.
        """
        value = self.options.get(option, (str(default),))[-1]
        number, end = grammar.read_number(value, 0, f"--{option}", 0)
        if end != len(value):
            raise UsageError(f"--{option}={value}: not a number; nearest: --{option}={number}")
        return number

    def of_each_number(self) -> Iterator[Self]:
        """Yield an entry for each combination of the numbers in the options of its driver."""
        names = ("mb", *_NUMBERS.get(self.op, ()))
        given = {name: self.options[name] for name in names if name in self.options}
        for values in itertools.product(*given.values()):
            single = {name: (value,) for name, value in zip(given, values, strict=True)}
            yield replace(self, options={**self.options, **single})

    def _prefixes(self, pool: str | None, omitted: dict[str, None]) -> list[tuple[str, str | None]]:
        """Return prefixes of descriptors, and kinds of pooling.

        Args:
            pool: Kind of pooling of ``--pool``.
            omitted: Receives values of options for which there is no op.
        """
        if self.op in _WITHOUT_OP:
            raise UnsupportedError(f"--op {self.op}: there is no such op")
        if self.op not in _DRIVERS:
            return [(f"{self.op}:" if self.op else "", pool)]
        known = self._algorithms()
        algorithms = self.options.get("alg", (next(iter(known)),))
        names = [_AFFIXES.sub("", name.lower()) for name in algorithms]
        prefixes = [known[name] for name in names if name in known]
        unknown = (word for word, name in zip(algorithms, names, strict=True) if name not in known)
        omitted |= dict.fromkeys(f"--alg={word}" for word in unknown)
        if not prefixes:
            near = self._nearest_algorithm(names[0], known)
            raise UnsupportedError(
                f"--alg={algorithms[0]}: there is no such op; nearest: {near}, or another --op"
            )
        if self.op == "pool":
            return [("", pool or mode) for mode in prefixes]
        if "rnn-:" in prefixes:
            prefixes = self._cells(prefixes, omitted)
        if self.op == "concat" and ":" not in self._with_all_shapes():
            prefixes = ["move:copy:"]  # the other tensors are empty
        if self.op == "sum" and self._sources() == 3:
            prefixes = ["elementwise:sum3:"]
        if self.op == "eltwise":
            prefixes = self._functions([name for name in names if name in known], omitted)
        return [(prefix, pool) for prefix in prefixes]

    def _nearest_algorithm(self, name: str, known: Mapping[str, str]) -> str:
        if self.op == "binary" and name in ("eq", "ne", "lt", "le", "gt", "ge"):
            return f"elementwise:{name}:{self.text}, which writes a mask instead of numbers"
        if name in _DRIVERS[self.op]:
            return "--p=2 --eps=0"
        return ", ".join(nearest(name, known) or known)

    def _cells(self, prefixes: Sequence[str], omitted: dict[str, None]) -> list[str]:
        """Return prefixes with those of cells without gates for each activation."""
        functions = [name.lower() for name in self.options.get("activation", ("relu",))]
        cells = [f"rnn-{name}:" for name in functions if name in ("relu", "tanh")]
        omitted |= {
            f"--activation={name}": None for name in functions if f"rnn-{name}:" not in cells
        }
        cells += [prefix for prefix in prefixes if prefix != "rnn-:"]
        if not cells:
            text = ",".join(functions)
            raise UnsupportedError(
                f"--activation={text}: there is no such op; nearest: --activation=tanh"
            )
        return cells

    def _algorithms(self) -> Mapping[str, str]:
        """Return prefixes by the driver's algorithm."""
        left_out = set()
        if not (self._is("p", 2) and self._is("eps", 0)):
            left_out.add("reduction:norm:")
        if self.text.count(":") < _OPERANDS_OF_SELECT - 1:
            left_out.add("elementwise:select:")
        return {
            name: prefix for name, prefix in _DRIVERS[self.op].items() if prefix not in left_out
        }

    def _is(self, option: str, number: float) -> bool:
        """Whether this number is the only value of an option; 0 if the option is not given."""
        try:
            return [*map(float, self.options.get(option, ("0",)))] == [number]
        except ValueError:
            return False

    @property
    def without_batch(self) -> bool:
        """Whether the problem has fields, but no batch."""
        fields = self.described and self.op in _WITH_BATCH and not self.text[:1].isdecimal()
        return fields and "mb" not in self.text.partition("n")[0] and not self._number("mb")

    def _functions(self, names: Sequence[str], omitted: dict[str, None]) -> list[str]:
        """Return prefixes of functions with all combinations of their numbers.

        Args:
            names: The library's names of the functions.
            omitted: Receives functions of which no op has such numbers.

        Raises:
            UnsupportedError: No op has such numbers.
        """
        given: dict[str, Sequence[str]] = {
            name: self.options[name] for name in ("alpha", "beta") if name in self.options
        }
        found = []
        for name, *values in itertools.product(names, *given.values()):
            texts = dict(zip(given, values, strict=True))
            numbers = {word: _real_number(f"--{word}", text) for word, text in texts.items()}
            prefix = _function(name, numbers)
            if prefix is not None:
                found.append(prefix)
                continue
            words = [f"--alg={name}", *(f"--{word}={text}" for word, text in texts.items())]
            omitted[" ".join(words)] = None
        if not found:
            given = {"alg": names[:1], **given}
            text = " ".join(f"--{name}={','.join(values)}" for name, values in given.items())
            _, alpha, beta = _FUNCTIONS[names[0]]
            raise UnsupportedError(
                f"{text}: there is no such op; nearest: --alpha={alpha:g} --beta={beta:g}"
            )
        return found

    def _precisions(self, omitted: dict[str, None]) -> tuple[tuple[str, ...], str]:
        """Return the precisions, and the options with which something else is computed.

        Args:
            omitted: Receives values with which something else is computed, beside others.
        """
        types = {key: self.options[key] for key in _TYPES if key in self.options}
        if "sdt" in types and self.op not in ("concat", "prelu"):
            types.setdefault("ddt", ("f32",))  # benchdnn's default
        known = [_plain_types(values, self.op) for values in types.values()]
        common = set.intersection(*known) if known else set()
        changed = [] if common or not types else list(types)
        if common:
            for key, values in types.items():
                omitted |= _others(key, values, [bool(_plain_types([v], self.op)) for v in values])
        for key, values in self.options.items():
            usual = _KNOWN_VALUES.get(key, ".*")
            if key == "flags" and self.op == "bnorm":  # statistics are given: its inference
                usual = "[GCHO]*"
            elif key == "bia-mask":  # of a bias for each column
                usual = str(2 ** self.text.partition(":")[0].count("x"))
            plain = [bool(re.fullmatch(usual, value)) for value in values]
            omitted |= _others(key, values, plain)
            if not any(plain):
                changed.append(key)
        given = {**self.options, **types}
        text = " ".join(f"--{key}={','.join(given[key])}" for key in changed)
        named = [_PRECISIONS[name] for name in _PRECISIONS if name in common]
        return (*named, *(name for name in MIXED_TYPES if name in common)), text

    def _fusions(self, omitted: dict[str, None]) -> tuple[tuple[str, ...], str]:
        """Return the fused operations, and the options with operations that cannot be fused.

        Args:
            omitted: Receives operations that cannot be fused, beside others.
        """
        given = {key: self.options[key] for key in _FUSED if any(self.options.get(key, ()))}
        if not given:
            return (), ""
        texts = {key: [_fused(key, value) for value in given[key]] for key in given}
        known = [[text for text in texts[key] if text is not None] for key in given]
        if self.op not in _WITH_FUSED or not all(known):
            return (), " ".join(f"--{key}={','.join(values)}" for key, values in given.items())
        for key, values in given.items():
            omitted |= _others(key, values, [text is not None for text in texts[key]])
        combined = ("+".join(filter(None, parts)) for parts in itertools.product(*known))
        return tuple(
            dict.fromkeys(canonical_fusion(text or NOTHING_FUSED) for text in combined)
        ), ""


def _others(key: str, values: Sequence[str], plain: Sequence[bool]) -> dict[str, None]:
    """Return the values of an option that are not plain, beside others that are."""
    pairs = zip(values, plain, strict=True) if any(plain) else ()
    return {f"--{key}={value}": None for value, usual in pairs if not usual}


def _by_flags(layer: Layer, flags: Sequence[str]) -> Iterator[Layer]:
    """Yield a normalisation as each of benchdnn's flags says: without C and H it has no factors."""
    for flag in flags:
        if {*"CH"} & {*flag}:
            yield layer
        elif layer.op == "groupnorm":
            yield layer.replace(factors=False)
        else:
            rows = layer.batch * layer.channels * layer.height
            sizes = {"batch": rows, "channels": layer.width, "epsilon": layer.epsilon}
            yield build_layer("groupnorm", name=layer.name, factors=False, **sizes)


def _real_number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option}={text}: not a finite number; nearest: {option}=0")
    return number


def _function(name: str, numbers: Mapping[str, float]) -> str | None:
    """Return the prefix of a function's descriptor; None if no op has these numbers.

    Args:
        name: The library's name of the function.
        numbers: Its alpha and beta as far as they are given.
    """
    op, *usual = _FUNCTIONS[name]
    alpha, beta = (numbers.get(word, 0.0) for word in ("alpha", "beta"))
    if op == "hardtanh":
        return f"hardtanh:|alpha{alpha}beta{beta}" if alpha < beta else None
    if name == "elu" and alpha > 0:
        return f"elu:|alpha{alpha}"
    if name == "relu" and alpha:
        return "elementwise:leaky-relu:|:1"  # a slope that is an operand of one element
    for word, number in zip(("alpha", "beta"), usual, strict=True):
        if number and not math.isclose(numbers.get(word, number), number, rel_tol=1e-4):
            return None
    return f"{op}:|by{beta}" if name == "pow" and "beta" in numbers else f"{op}:"


def _plain_types(values: Sequence[str], driver: str) -> set[str]:
    """Return the types among values in which all tensors have the same one, and mixed ones."""
    matches = (re.fullmatch(r"(f32|bf16|f16)(?::?\1)*", value) for value in values)
    found = {match[1] for match in matches if match}
    if driver in (*_WITH_FUSED, "pool"):
        found.update(filter(None, (_mixed_types(value, driver) for value in values)))
    return found


def _mixed_types(value: str, driver: str) -> str | None:
    """Return the precision with the types ``u8:s8:s32``; poolings have source and result."""
    types = tuple(re.findall("bf16|f16|f32|s32|s8|u8", value))
    if "".join(types) != value.replace(":", ""):
        return None
    if driver == "pool" and len(types) < 3:
        types = (types[0], "s8", types[-1])
    return next((name for name, kinds in MIXED_TYPES.items() if kinds == types), None)


def _fused(option: str, value: str) -> str | None:
    """Return the operations of an option of benchdnn as those of ``--fuse``; None if unknown."""
    value = value.strip("'\"").replace(";", "+")
    if option == "bia-dt":
        return {"f32": "bias", "undef": ""}.get(value)
    if option == "attr-post-ops":
        try:
            plain = re.sub(r"(^|\+)(?:eltwise|binary)_", r"\1", value)
            return canonical_fusion(plain) if plain else ""
        except UsageError:
            return None
    suffix = "scale" if option == "attr-scales" else "zero_point"
    tensors = {"src": "src", "wei": "weights", "dst": "dst"}
    names = []
    for word in value.split("+") if value else ():
        match = _ATTRIBUTE.fullmatch(word)
        if match is None:
            return None
        name = f"{tensors[match[1]]}_{suffix}"
        policy = match[2] or "common"
        names.append(name if name != "weights_scale" and policy == "common" else f"{name}:{policy}")
    try:
        return canonical_fusion("+".join(names)) if names else ""
    except UsageError:
        return None


def _order(tag: str, driver: str) -> str:
    """Return the order of a matrix of weights for benchdnn's tag.

    Of products, ``abc`` is ``kn`` and ``acb`` is ``nk``. The weights of ``ip`` begin with the
    output channels: ``ab`` is ``nk``, ``ba`` is ``kn``. Other tags leave it to the library.
    """
    letters = "abcdefghijkl"[: len(tag)]
    if len(tag) < 2 or sorted(tag) != list(letters):
        return "any"
    if driver == "ip":
        orders = {letters: "nk", letters[1:] + letters[0]: "kn"}
    else:
        orders = {letters: "kn", letters[:-2] + letters[-1] + letters[-2]: "nk"}
    return orders.get(tag, "any")


def _along(shapes: re.Match[str], *, axis: int, op: str, groups: int, batch: int) -> str:
    """Return shapes with the sizes before an axis, along it, and after it; none without elements.

    Args:
        shapes: The shapes.
        axis: The axis.
        op: The driver. For a softmax the result is fields.
        groups: Groups of a shuffle.
        batch: First size; 0 for that of the shapes.

    Raises:
        UnsupportedError: The groups of a shuffle do not divide the axis, or there is no such axis.
    """
    tensors = []
    for shape in shapes[0].split(":"):
        sizes = [int(size) for size in shape.split("x") if size]
        if axis >= len(sizes):
            raise UnsupportedError(
                f"--axis={axis}: not one of {len(sizes)} dimensions; nearest: "
                f"--axis={len(sizes) - 1}"
            )
        sizes[0] = batch or sizes[0]
        outer, inner = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        along = sizes[axis]
        if along == 0:
            continue
        if op == "softmax":
            rows = f"{outer}x{along}" if inner == 1 else f"mb{outer}ic{along}ih1iw{inner}axis1"
            tensors.append(rows)
        elif op == "shuffle":
            if not groups or along % groups:
                nearest_groups = math.gcd(groups, along)
                raise UnsupportedError(
                    f"--group={groups}: not a divisor of {along}; nearest: {nearest_groups}"
                )
            tensors.append(f"{outer}x{groups}x{along // groups}x{inner}")
        else:
            tensors.append(f"{outer}x{along}x{inner}")
    return ":".join(tensors)


# -----------------------------------------------------------------------------
# Files.

# A comment, or a word, in which blanks may be in quotes or before a list's continuation.
_WORD: Final = re.compile(
    r"""#[^\n]*|((?:"[^"\n]*"|(?<=[,=:+])[ \t]*\\[ \t]*\r?\n[ \t]*|[^\s#]|(?<=[^\s"])#)+)"""
)


def check_op(op: str | None) -> None:
    """Check the value of ``--op``: a driver of benchdnn, or the prefix of a descriptor.

    Raises:
        UsageError: There is no such op.
    """
    known = [
        *_DRIVERS,
        *_WITHOUT_OP,
        *(op.prefix.removesuffix(":") for op in OPS.values() if op.prefix),
    ]
    if op is not None and op not in known:
        raise unknown_word(f"--op {op}: no such op", op, known)


def _check_included(path: Path, argument: str, opened: tuple[Path, ...]) -> None:
    """Refuse a file that includes itself, or that is in another folder; paths are resolved."""
    if path in opened:
        raise UsageError(f"{argument}: includes itself; nearest: leave the line out")
    if path.parent != opened[-1].parent:
        raise UsageError(
            f"{argument}: not in the folder of the list; nearest: a copy, --batch={path.name}"
        )


def text_of(path: Path, argument: str) -> str:
    """Return the text of a list."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        expected = "; expected a text file, one layer per line"
        raise UsageError(f"{argument}: {reason}{nearest_file(path) or expected}") from None
    if len(text) > _MAX_CHARACTERS:
        limit = f"at most {_MAX_CHARACTERS} characters"
        raise UsageError(f"{argument}: too long for a list of layers; {limit}")
    return text


def read_list(
    path: Path,
    argument: str,
    op: str | None,
    options: dict[str, tuple[str, ...]],
    ignored: dict[str, None],
    opened: tuple[Path, ...] = (),
) -> Iterator[ListEntry]:
    """Yield the names and descriptors of a file.

    Args:
        path: The file.
        argument: Prefix of error messages about the file itself.
        op: Op of descriptors without a prefix; None for that of the file's folder.
        options: Options in force, which change while the file is read.
        ignored: Receives options that have no effect.
        opened: Resolved paths of the files that include this one.

    Raises:
        UsageError: The file cannot be read.
    """
    resolved = path.resolve()
    if opened:
        _check_included(resolved, argument, opened)
    text = text_of(path, argument)
    folder = resolved.parent.name
    driver = (folder if folder in (*_DRIVERS, *_WITHOUT_OP) else "") if op is None else op
    number, end = 1, 0
    for match in _WORD.finditer(text):
        number += text.count("\n", end, match.start())
        end = match.start()
        word = re.sub(r"\s*\\\s*", "", match[1] or "")
        where = f"{path}:{number}: "
        name, _, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if not word:
            continue
        if not word.startswith("--"):
            entry = ListEntry(text=word, where=where, op=driver, options=dict(options))
            yield from entry.of_each_number() if entry.described else (entry,)
        elif name == "reset":
            options.clear()
        elif name == "batch":
            inner = path.parent / value
            yield from read_list(inner, f"{where}{word}", op, options, ignored, (*opened, resolved))
        elif name in ("dir", "prop") and not {*value.upper().split(",")} <= {*_PASSES, ""}:
            near = ", ".join(nearest(value.upper(), _PASSES) or _PASSES)
            raise UsageError(f"{where}{word}: no such direction; nearest: {near}")
        elif name == "case":
            yield ListEntry(text=value, where=where, op="graph", options=dict(options))
        elif name in _HONOURED and (driver == "matmul" or name not in _OF_PRODUCTS):
            options[name] = tuple(value.split(","))
        else:
            ignored[word] = None
