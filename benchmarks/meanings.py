"""Stored meanings of recorded calls, to compare today's rules with.

    python benchmarks/meanings.py --record FILE.jsonl.xz --minutes 40
    python benchmarks/meanings.py --check FILE.jsonl.xz
    python benchmarks/meanings.py --accept FILE.jsonl.xz

``--record`` takes forward and training steps of the models that ``own_models.py`` imports, of the
catalogue, of keras.applications and of ONNX files exported from some of these. The file gets the
signature of each distinct call and its meaning by the product's rules. Models that are in the file
already are skipped, so that the same command resumes. Nothing is timed.

``--check`` applies today's rules to each signature of a file and prints the differences; with any,
the exit code is 1. It needs neither a framework nor a model. ``--accept`` writes today's meanings
into the file, for intended differences.

A file is JSON lines, compressed by xz. The first line has the models and the versions of the
libraries; each other line is a distinct call with its meaning, see :func:`meaning`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import importlib.metadata
import itertools
import json
import lzma
import operator
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from pydlbench.calls.meaning import LayerPass
from pydlbench.calls.seen import meaning_of
from pydlbench.errors import PydlbenchError
from pydlbench.models import build_model, model_names
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import RecordedCall
from pydlbench.records.user_model import UserInput, UserModelSpec

__all__ = ["Meanings", "differences", "layer_text", "meaning"]

PHASES: Final = ("forward", "training")
FRAMEWORKS: Final = ("torch", "tensorflow", "onnxruntime")
_LIBRARIES: Final = (
    *("torch", "torchvision", "timm", "transformers", "tensorflow", "tensorflow-cpu", "keras"),
    "onnxruntime",
)
_HERE: Final = os.path.relpath(__file__)
#: Maximum number of printed differences.
_MAX_PRINTED: Final = 20
#: Seconds between two writes of the file.
_WRITE_INTERVAL_S: Final = 300.0


# -----------------------------------------------------------------------------
# Meanings.


def meaning(call: RecordedCall) -> dict[str, Any]:
    """Return the meaning of a call by the product's rules, without empty or unknown values.

    - ``kind``: ``product``, ``view``, ``other``...
    - ``layers``: descriptor and pass of each, see :func:`layer_text`;
      ``layers_missing``: why there are none.
    - ``flops``, ``product_flops``, ``flops_missing``: as above.
    - ``bytes``, ``bytes_missing``: least bytes moved.
    - ``note``, ``dtypes``.
    """
    found = meaning_of(call)
    uncounted = "the sizes of its results are not recorded"
    bytes_missing = found.flops_missing if found.kind == "other" else uncounted
    values = {
        "kind": found.kind,
        "layers": [layer_text(step) for step in found.layers],
        "layers_missing": found.layers_missing,
        "flops": found.flops,
        "product_flops": found.product_flops,
        "flops_missing": found.flops_missing,
        "bytes": found.bytes,
        "bytes_missing": bytes_missing if found.bytes is None else None,
        "note": found.note,
        "dtypes": list(found.dtypes),
    }
    return {key: value for key, value in values.items() if value not in (None, [])}


def layer_text(work: LayerPass) -> str:
    """Return a layer with its pass: ``conv mb2ic3ih8oc4kh3 backward-data``.

    ``training`` follows if a forward pass keeps data for the gradient.
    """
    trains = work.pass_ == "forward" and work.propagation == "training"
    return f"{_descriptor(work.layer)} {work.pass_}{' training' if trains else ''}"


@functools.cache
def _descriptor(layer: Layer) -> str:
    """Return a layer's kind and descriptor, with the fields that descriptors lack."""
    pool = layer.mode if layer.kind.startswith("pool") else None
    plain = parse_problem(layer.problem, pool=pool).fields
    extra = [f" {name}={value}" for name, value in layer.fields.items() if plain[name] != value]
    mode = f" {layer.mode}" if hasattr(layer, "mode") else ""
    return f"{layer.kind}{mode} {layer.problem}{''.join(extra)}"


def differences(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the lines whose meaning differs by today's rules, and the differences as text."""
    for line in lines:
        then, now = line["meaning"], meaning(_call(line))
        if then != now:
            words = [
                f"  {key}: {then.get(key)} -> {now.get(key)}"
                for key in sorted({*then, *now})
                if then.get(key) != now.get(key)
            ]
            yield line, "\n".join(words)


def _call(line: Mapping[str, Any]) -> RecordedCall:
    keys = ("signature", "operator", "direction", "bytes")
    return RecordedCall(**{key: line[key] for key in keys}, trained=tuple(line.get("trained", ())))


class Meanings:
    """A file of meanings.

    Args:
        path: path of the file; a missing file is empty.

    Attributes:
        path: path of the file.
        models: number of distinct calls by model.
        libraries: versions of libraries by name.
        lines: the distinct calls, by signature and direction.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models: dict[str, int] = {}
        self.libraries: dict[str, str] = {}
        self.lines: dict[tuple[str, str], dict[str, Any]] = {}
        if path.exists():
            with lzma.open(path, "rt", encoding="utf-8") as file:
                head = json.loads(file.readline())
                self.models, self.libraries = head["models"], head["libraries"]
                for text in file:
                    line = json.loads(text)
                    self.lines[line["signature"], line["direction"]] = line

    def add(self, model: str, framework: str, calls: Sequence[RecordedCall]) -> int:
        """Add a model's calls; return the number of new ones."""
        before = len(self.lines)
        for call in calls:
            key = call.signature, str(call.direction)
            if key not in self.lines:
                self.lines[key] = {
                    "framework": framework,
                    "operator": call.operator,
                    "direction": call.direction,
                    "bytes": call.bytes,
                    "signature": call.signature,
                    "meaning": meaning(call),
                    **({"trained": call.trained} if call.trained else {}),
                }
        self.models[model] = len(calls)
        return len(self.lines) - before

    def write(self) -> None:
        """Write the file atomically."""
        beside = self.path.with_name(f"{self.path.name}.new")
        # Similar lines next to each other compress better.
        keys = operator.itemgetter("framework", "operator", "signature", "direction")
        ordered = sorted(self.lines.values(), key=keys)
        head = {"models": self.models, "libraries": self.libraries}
        with lzma.open(beside, "wt", encoding="utf-8", preset=6) as file:
            for line in (head, *ordered):
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        beside.replace(self.path)


# -----------------------------------------------------------------------------
# Recorded models.


class Model(NamedTuple):
    """A step to record.

    Attributes:
        name: framework, model and phase.
        make: function that returns the step.
    """

    name: str
    make: Callable[[], StepSpec]


def _step(name: str, **how: Any) -> Model:
    return Model(f"{how['framework']} {name} {how['phase']}", lambda: StepSpec(**how))


def torch_models() -> Iterator[Model]:
    """Yield steps in PyTorch: the catalogue, layers, other libraries from small to large."""
    for name in model_names():
        for phase in PHASES:
            batch = 2 if name in _batched() else None
            yield _step(name, model=name, batch=batch, phase=phase, framework="torch")
    for phase in PHASES:
        yield _step(
            "layers",
            model=f"{_HERE}:torch_layers",
            own=UserModelSpec(),
            phase=phase,
            framework="torch",
        )
    _import_torchvision()
    own_models = importlib.import_module("own_models")
    everything = _in_turn(own_models.imported())
    for entry in everything:
        if entry.model in _VARIED:
            for name, more, own in _VARIATIONS:
                yield Model(
                    f"torch {entry.name} training {name}",
                    functools.partial(_varied, entry.step("training"), more, own),
                )
    for entry in everything:
        for phase in PHASES:
            yield Model(f"torch {entry.name} {phase}", functools.partial(entry.step, phase))


def _in_turn(models: Iterable[Any]) -> list[Any]:
    """Return models of all libraries alternately, from small to large."""
    by_library: dict[str, list[Any]] = {}
    for entry in sorted(models, key=_size):
        by_library.setdefault(entry.builder, []).append(entry)
    rounds = itertools.zip_longest(*by_library.values())
    return [entry for together in rounds for entry in together if entry is not None]


#: Models that are recorded in other precisions and layouts and with other optimizers, too.
_VARIED: Final = ("bert", "llama", "resnet18", "convnextv2_atto", "shufflenet_v2_x0_5")
_VARIATIONS: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    ("bf16", {"precision": "bf16"}, {"optimizer": "momentum"}),
    ("bf16 whole", {"precision": "bf16", "cast": "whole"}, {"optimizer": "adam"}),
    ("nhwc", {"layout": "nhwc"}, {"optimizer": "adamw"}),
    ("fused", {}, {"optimizer": "adamw-fused"}),
    ("sgd-fused", {}, {"optimizer": "sgd-fused"}),
)


def _varied(step: StepSpec, more: Mapping[str, Any], own: Mapping[str, Any]) -> StepSpec:
    changed: StepSpec = msgspec.structs.replace(
        step, own=msgspec.structs.replace(step.own or UserModelSpec(), **own), **more
    )
    return changed


def _size(entry: Any) -> int:
    """Return a model's number of weights; 0 for other libraries, whose models are small."""
    if entry.builder != "vision":
        return 0
    from torchvision import models

    weights: int = models.get_model_weights(entry.model).DEFAULT.meta["num_params"]
    return weights


@functools.cache
def _batched() -> frozenset[str]:
    """Return the models of the catalogue that accept another batch."""
    found = set()
    for name in model_names():
        try:
            build_model(name, batch=2)
        except PydlbenchError:
            continue
        found.add(name)
    return frozenset(found)


def _import_torchvision() -> None:
    """Import torchvision, even if its compiled operators are for another PyTorch.

    No model here calls them, but torchvision describes two of them, which then have to exist.
    """
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", arguments)
        importlib.import_module("torchvision")


def torch_layers() -> Any:
    """Build a PyTorch model of layers that the other models lack."""
    import torch
    from torch import nn

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = nn.Sequential(
                nn.Conv1d(4, 8, 3, padding=1),
                nn.BatchNorm1d(8),
                nn.MaxPool1d(2),
                nn.ConvTranspose1d(8, 8, 3, 2, 1, 1, groups=2),
                nn.AvgPool1d(2),
                nn.Conv1d(8, 8, 5, 2, dilation=2, padding=4, groups=4),
                nn.AdaptiveAvgPool1d(6),
                nn.Hardtanh(),
            )
            self.volumes = nn.Sequential(
                nn.Conv3d(2, 4, 3, padding=1),
                nn.InstanceNorm3d(4, affine=True),
                nn.MaxPool3d(2),
                nn.ConvTranspose3d(4, 4, 2, 2),
                nn.AvgPool3d(2, padding=1),
                nn.AdaptiveMaxPool3d(2),
                nn.Upsample(scale_factor=2, mode="trilinear"),
            )
            self.images = nn.Sequential(
                nn.ReflectionPad2d(1),
                nn.Conv2d(3, 8, 3, padding_mode="circular", padding=1),
                nn.GroupNorm(2, 8),
                nn.PReLU(8),
                nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, dilation=1),
                nn.ELU(),
                nn.AdaptiveMaxPool2d(5),
                nn.LPPool2d(2, 2, ceil_mode=True),
                nn.Upsample(size=(7, 9), mode="bicubic"),
                nn.PixelShuffle(1),
                nn.Softplus(),
                nn.LocalResponseNorm(3),
                nn.CELU(),
                nn.Mish(),
                nn.Softsign(),
                nn.Dropout2d(0.2),
            )
            self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
            self.gru = nn.GRU(12, 5)
            self.plain = nn.RNN(5, 4, nonlinearity="relu")
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.bag = nn.EmbeddingBag(10, 4, mode="mean")
            self.bilinear = nn.Bilinear(4, 4, 3)
            self.scale = nn.RMSNorm(3)

        def forward(
            self, lines: Any, volumes: Any, images: Any, tokens: Any
        ) -> tuple[torch.Tensor, ...]:
            rows, _ = self.lstm(self.lines(lines).transpose(1, 2))
            rows, _ = self.gru(rows)
            rows, _ = self.plain(rows)
            seen, _ = self.attention(rows, rows, rows)
            seen = self.encoder(seen)
            words = self.bag(tokens)
            both = self.scale(self.bilinear(words, seen[:, 0]))
            causal = nn.functional.scaled_dot_product_attention(
                seen[:, None], seen[:, None], seen[:, None], is_causal=True
            )
            totals = (
                both.cumsum(-1).logsumexp(0)
                + both.std(0)
                + both.amax(0)
                + both.prod(0) / both.norm()
            )
            table = torch.einsum("bij,bkj->bik", seen, causal[:, 0])
            chosen, _ = table.sort(-1, descending=True)
            parts = torch.where(chosen > 0, chosen.exp(), chosen.abs().sqrt()).tril()
            return self.volumes(volumes), self.images(images), totals, parts.roll(1, 0).flip(1)

    given = torch.randn(2, 4, 12), torch.randn(2, 2, 6, 6, 6), torch.randn(2, 3, 9, 9)
    return Layers(), (*given, torch.randint(0, 10, (2, 5)))


#: One model per family of keras.applications, and the smallest valid side of its images.
_APPLICATIONS: Final = {
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "DenseNet121": 64,
    "NASNetMobile": 64,
    "InceptionV3": 80,
    "Xception": 80,
    "ConvNeXtTiny": 64,
    "VGG16": 64,
    "InceptionResNetV2": 80,
    "MobileNet": 64,
}


def tensorflow_models() -> Iterator[Model]:
    """Yield steps in TensorFlow: of layers, of keras.applications, of the catalogue."""
    for phase in PHASES:
        yield _step(
            "layers",
            model=f"{_HERE}:keras_layers",
            own=UserModelSpec(optimizer="adam"),
            phase=phase,
            framework="tensorflow",
        )
    for name, side in _APPLICATIONS.items():
        for phase in PHASES:
            yield _step(
                f"keras.applications {name}",
                model=f"keras.applications:{name}",
                options={"weights": None, "input_shape": (side, side, 3)},
                own=UserModelSpec(
                    inputs=(UserInput(shape=(2, side, side, 3)),), optimizer="momentum"
                ),
                phase=phase,
                framework="tensorflow",
            )
    for name in model_names():
        for phase in PHASES:
            batch = 2 if name in _batched() else None
            yield _step(name, model=name, batch=batch, phase=phase, framework="tensorflow")


def keras_layers() -> Any:
    """Build a Keras model of layers that the applications lack."""
    import keras
    from keras import layers

    from pydlbench.backends.tensorflow.settings import tf

    lines, volumes = keras.Input((12, 4)), keras.Input((6, 6, 6, 2))
    images, tokens = keras.Input((9, 9, 3)), keras.Input((5,), dtype="int32")
    rows = layers.Conv1D(8, 3, padding="same", activation="gelu")(lines)
    rows = layers.MaxPooling1D(2)(rows)
    rows = layers.Conv1DTranspose(8, 3, 2, padding="same")(rows)
    rows = layers.SeparableConv1D(8, 3)(layers.AveragePooling1D(2)(rows))
    rows = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(rows)
    rows = layers.GRU(8, return_sequences=True)(rows)
    rows = layers.MultiHeadAttention(2, 4)(rows, rows, use_causal_mask=True)
    rows = layers.LayerNormalization()(rows)
    maps = layers.Conv3D(4, 3, padding="same", activation="elu")(volumes)
    maps = layers.AveragePooling3D(2)(layers.MaxPooling3D(2)(maps))
    maps = layers.Conv3DTranspose(3, 2, 2)(maps)
    planes = layers.Conv2D(8, 3, padding="same", groups=2)(layers.ZeroPadding2D(1)(images)[..., :2])
    planes = layers.GroupNormalization(2)(planes)
    planes = layers.DepthwiseConv2D(3, dilation_rate=2, padding="same")(planes)
    planes = layers.Conv2DTranspose(6, 3, 2, padding="same", activation="softplus")(planes)
    planes = layers.UpSampling2D(2, interpolation="bilinear")(planes)
    planes = layers.PReLU()(layers.Resizing(7, 5, interpolation="nearest")(planes))
    planes = layers.SpatialDropout2D(0.2)(planes)
    words = layers.Embedding(10, 8)(tokens)
    words = layers.TimeDistributed(layers.Dense(8, activation="silu"))(words)
    attended = layers.Attention()([words, rows])
    flat = layers.Concatenate()(
        [
            layers.GlobalAveragePooling1D()(attended),
            layers.GlobalMaxPooling2D()(planes),
            layers.GlobalAveragePooling3D()(maps),
        ]
    )
    flat = layers.Dense(6, activation="softmax", kernel_regularizer="l2")(
        layers.BatchNormalization()(layers.UnitNormalization()(flat))
    )
    given = (
        tf.random.normal((2, 12, 4)),
        tf.random.normal((2, 6, 6, 6, 2)),
        tf.random.normal((2, 9, 9, 3)),
        tf.random.uniform((2, 5), 0, 10, tf.int32),
    )
    return keras.Model([lines, volumes, images, tokens], flat), given


#: Models whose forward steps are exported as ONNX files, by builder in ``zoo.py``.
_EXPORTED: Final = {
    "vision": (
        *("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "densenet121"),
        *(
            "googlenet",
            "efficientnet_b0",
            "convnext_tiny",
            "swin_t",
            "regnet_y_400mf",
            "mnasnet0_5",
        ),
        "alexnet",
    ),
    "pictures": (
        *("convnextv2_atto", "mixer_s32_224", "edgenext_xx_small", "levit_128s", "mobilevit_xxs"),
        *("poolformer_s12", "ghostnet_050", "starnet_s050", "xcit_nano_12_p16_224"),
    ),
    "language": ("bert", "gpt2", "llama", "t5", "whisper", "deberta-v2", "vit", "distilbert"),
}


def onnxruntime_models() -> Iterator[Model]:
    """Yield steps of ONNX files: one with many nodes, and exported models."""
    _import_torchvision()
    own_models = importlib.import_module("own_models")
    folder = Path(tempfile.mkdtemp(prefix="meanings-"))
    exported = {
        entry.name: entry.step("forward")
        for entry in own_models.imported()
        if entry.model in _EXPORTED[entry.builder]
    }
    nodes = folder / "nodes.onnx"
    _write_nodes(nodes)
    for mode in ("optimized", "unoptimized"):
        how = {"model": str(nodes), "own": UserModelSpec(), "mode": mode, "phase": "forward"}
        yield _step(f"nodes {mode}", framework="onnxruntime", **how)
    for name, step in exported.items():
        for mode in ("optimized", "unoptimized"):
            make = functools.partial(_exported, step, folder / f"{name}.onnx", mode)
            yield Model(f"onnxruntime {name} {mode}", make)


def _exported(step: StepSpec, path: Path, mode: str) -> StepSpec:
    """Write a model's forward step as an ONNX file, and return the step of that file."""
    import torch

    from pydlbench.backends.torch.backend import create
    from pydlbench.backends.torch.steps.user_model import UserTorchModel

    if not path.exists():
        with UserTorchModel(create("cpu"), step) as made:
            module = made.module.eval()
            torch.onnx.export(
                module, made.arguments, str(path), kwargs=made.keywords, verbose=False
            )
    return StepSpec(model=str(path), own=UserModelSpec(), framework="onnxruntime", mode=mode)


#: Nodes that the exported models lack: operator, shapes of its inputs (a list has the integers of a
#: constant), attributes.
_NODES: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("Conv", ((2, 4, 12), (6, 4, 3)), {"pads": [1, 1], "strides": [2]}),
    (
        "Conv",
        ((2, 4, 12), (8, 2, 3), (8,)),
        {"group": 2, "dilations": [2], "pads": [2, 2]},
    ),
    ("Conv", ((2, 3, 6, 6, 6), (4, 3, 3, 3, 3)), {"pads": [1] * 6}),
    ("Conv", ((2, 3, 9, 7), (4, 3, 3, 3)), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("ConvTranspose", ((2, 4, 6), (4, 3, 2)), {"strides": [2]}),
    ("ConvTranspose", ((2, 4, 6, 6), (4, 3, 3, 3)), {"strides": [2, 2], "output_padding": [1, 1]}),
    ("ConvTranspose", ((2, 4, 3, 3, 3), (4, 2, 2, 2, 2)), {"group": 2}),
    ("MaxPool", ((2, 4, 12),), {"kernel_shape": [2], "strides": [2]}),
    ("MaxPool", ((2, 4, 9, 9),), {"kernel_shape": [3, 3], "dilations": [2, 2], "ceil_mode": 1}),
    ("MaxPool", ((2, 4, 6, 6, 6),), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ("AveragePool", ((2, 4, 9, 9),), {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    ("AveragePool", ((2, 4, 6, 6, 6),), {"kernel_shape": [2, 2, 2]}),
    ("LpPool", ((2, 4, 9, 9),), {"kernel_shape": [3, 3]}),
    ("GlobalMaxPool", ((2, 4, 9, 9),), {}),
    ("GlobalAveragePool", ((2, 4, 9),), {}),
    ("LSTM", ((5, 2, 4), (1, 12, 4), (1, 12, 3)), {"hidden_size": 3}),
    ("LSTM", ((5, 2, 4), (2, 12, 4), (2, 12, 3)), {"hidden_size": 3, "direction": "bidirectional"}),
    ("GRU", ((5, 2, 4), (1, 9, 4), (1, 9, 3), (1, 18)), {"hidden_size": 3}),
    ("RNN", ((5, 2, 4), (1, 3, 4), (1, 3, 3)), {"hidden_size": 3}),
    ("Gemm", ((4, 3), (5, 4), (5,)), {"transA": 1, "transB": 1, "alpha": 0.5}),
    ("Gemm", ((3, 4), (4, 5), (3, 1)), {"beta": 2.0}),
    ("MatMul", ((2, 3, 4, 5), (5, 6)), {}),
    ("MatMul", ((1, 3, 4, 5), (2, 1, 5, 6)), {}),
    ("MatMul", ((5,), (5, 6)), {}),
    ("Einsum", ((2, 3, 4), (2, 5, 4)), {"equation": "bij,bkj->bik"}),
    ("InstanceNormalization", ((2, 4, 5, 5), (4,), (4,)), {}),
    ("LayerNormalization", ((2, 4, 6), (6,), (6,)), {"axis": -1}),
    ("LayerNormalization", ((2, 4, 6), (4, 6)), {"axis": 1}),
    ("LpNormalization", ((2, 6),), {}),
    ("LRN", ((2, 6, 5, 5),), {"size": 3}),
    ("BatchNormalization", ((2, 4, 5, 5), (4,), (4,), (4,), (4,)), {}),
    ("Softmax", ((2, 4, 6),), {"axis": 1}),
    ("LogSoftmax", ((2, 6),), {}),
    ("Resize", ((1, 2, 4, 4), None, None, [1, 2, 8, 8]), {"mode": "linear"}),
    ("Resize", ((1, 2, 4, 4), None, None, [1, 2, 7, 5]), {"mode": "nearest"}),
    ("Resize", ((1, 2, 4, 4), None, None, [1, 2, 8, 8]), {"mode": "cubic"}),
    ("DepthToSpace", ((2, 8, 3, 3),), {"blocksize": 2}),
    ("Pad", ((2, 3, 4, 4), [0, 0, 1, 1, 0, 0, 1, 1]), {"mode": "reflect"}),
    ("Tile", ((2, 3), [1, 2]), {}),
    ("Expand", ((2, 1), [2, 3]), {}),
    ("Slice", ((4, 6), [1], [3], [1]), {}),
    ("Split", ((4, 6),), {"num_outputs": 1, "axis": 1}),
    ("Concat", ((2, 3), (2, 4)), {"axis": 1}),
    ("Transpose", ((2, 3, 4),), {"perm": [2, 0, 1]}),
    ("Gather", ((6, 4), [1, 3, 5]), {}),
    ("Gather", ((6, 4), [1, 3]), {"axis": 1}),
    ("GatherElements", ((2, 3), [[0, 1, 2], [0, 0, 1]]), {"axis": 1}),
    ("GatherND", ((4, 3), [[0, 1], [2, 2]]), {}),
    ("ScatterND", ((4, 3), [[0], [2]], (2, 3)), {}),
    ("CumSum", ((2, 6), [1]), {}),
    ("ArgMax", ((2, 6),), {"axis": 1}),
    ("Trilu", ((4, 4),), {}),
    *(
        (name, ((2, 4, 6), [axis]), {"keepdims": keep})
        for name in (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceL2",
            "ReduceLogSumExp",
            "ReduceProd",
        )
        for axis, keep in ((2, 1), (1, 0), (0, 1))
    ),
    *(
        (name, ((2, 4, 6),), {})
        for name in (
            *(
                "Elu",
                "Selu",
                "HardSwish",
                "HardSigmoid",
                "Mish",
                "Gelu",
                "Erf",
                "Softplus",
                "Softsign",
            ),
            *(
                "LeakyRelu",
                "Celu",
                "ThresholdedRelu",
                "Tanh",
                "Sigmoid",
                "Exp",
                "Log",
                "Sqrt",
                "Sin",
            ),
            *("Abs", "Neg", "Reciprocal", "Sign", "Floor", "Round", "IsNaN", "Identity", "Shape"),
        )
    ),
    *(
        (name, ((2, 4, 6), other), {})
        for name in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Greater", "PRelu")
        for other in ((2, 4, 6), (1, 4, 1), (1,))
    ),
)


def _write_nodes(path: Path) -> None:
    """Write a file of nodes that do not read each other's results."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, inputs, outputs, constants = [], [], [], []
    for number, (op, reads, attributes) in enumerate(_NODES):
        names = []
        for place, shape in enumerate(reads):
            name = "" if shape is None else f"{op}{number}_{place}"
            names.append(name)
            if isinstance(shape, list):
                constants.append(numpy_helper.from_array(np.array(shape, np.int64), name))
            elif shape is not None:
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        name = f"{op}_{number}"
        nodes.append(helper.make_node(op, names, [name], name=name, **attributes))
        outputs.append(onnx.ValueInfoProto(name=name))
    graph = helper.make_graph(nodes, "nodes", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


_MODELS: Final = {
    "torch": torch_models,
    "tensorflow": tensorflow_models,
    "onnxruntime": onnxruntime_models,
}


def record(stored: Meanings, framework: str, until: float, only: Sequence[str]) -> None:
    """Record a framework's models until a moment of ``time.monotonic``; write the file."""
    from pydlbench.backends.steps import requests

    create = importlib.import_module(f"pydlbench.backends.{framework}.backend").create
    backend = create("cpu")
    written = time.monotonic()
    for number, model in enumerate(_MODELS[framework]()):
        if model.name in stored.models or (only and not set(only) & set(model.name.split())):
            continue
        if time.monotonic() > until:
            break
        begin = time.monotonic()
        try:
            calls = requests.request_call_list(backend, model.make().to_dict()).facts.calls
        except (PydlbenchError, MemoryError) as error:
            print(f"{number} {model.name}: {' '.join(str(error).split())[:300]}", flush=True)
            continue
        new = stored.add(model.name, framework, calls)
        seconds = time.monotonic() - begin
        print(f"{number} {model.name}: {len(calls)}, {new} new, {seconds:.1f} s", flush=True)
        if time.monotonic() > written + _WRITE_INTERVAL_S:
            stored.write()
            written = time.monotonic()
    for library in _LIBRARIES:
        try:
            stored.libraries[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    stored.write()


# -----------------------------------------------------------------------------
# Existing files.


def check(stored: Meanings) -> int:
    """Print the number of differences and the first of them; return the number."""
    different = list(differences(stored.lines.values()))
    for line, words in different[:_MAX_PRINTED]:
        print(f"{line['direction']} {line['signature'][:400]}\n{words}")
    by_operator = collections.Counter(line["operator"] for line, _ in different)
    models = f"{len(stored.models)} steps of models"
    print(f"{len(different)} of {len(stored.lines)} meanings differ; {models}")
    if different:
        print(", ".join(f"{name} ({count})" for name, count in by_operator.most_common()))
    return len(different)


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--record", type=Path, metavar="FILE", help="add models to a file")
    task.add_argument("--check", type=Path, metavar="FILE", help="hold a file against the rules")
    task.add_argument("--accept", type=Path, metavar="FILE", help="write today's meanings into it")
    parser.add_argument("--minutes", type=float, default=40.0, help="record: begin none after (40)")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument(
        "--models", nargs="+", default=(), metavar="NAME", help="record: only these"
    )
    args = parser.parse_args()
    path = args.check or args.accept
    if path is not None and not path.exists():
        parser.error(f"{path}: no such file; nearest: --record {path}")
    return args


def main() -> int:
    """Record, check or accept; return 1 if meanings differ."""
    args = read()
    if args.record is not None:
        until = time.monotonic() + 60 * args.minutes
        stored = Meanings(args.record)
        for framework in args.frameworks:
            record(stored, framework, until, args.models)
        print(f"{len(stored.models)} steps of models, {len(stored.lines)} distinct calls")
        return 0
    stored = Meanings(args.check or args.accept)
    if args.accept is not None:
        for line in stored.lines.values():
            line["meaning"] = meaning(_call(line))
        stored.write()
        print(f"{len(stored.lines)} distinct calls")
        return 0
    stored.lines = {
        key: line for key, line in stored.lines.items() if line["framework"] in args.frameworks
    }
    return int(check(stored) > 0)


if __name__ == "__main__":
    sys.exit(main())
