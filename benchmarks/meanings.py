"""What recorded calls mean, kept: old rules held against new ones.

    python benchmarks/meanings.py --record FILE.jsonl.xz --minutes 40
    python benchmarks/meanings.py --check FILE.jsonl.xz
    python benchmarks/meanings.py --accept FILE.jsonl.xz

``--record`` takes forward and training steps of the models that ``own_models.py`` imports, of the
catalogue, of keras.applications and of ONNX files exported from some of these. Of each distinct
call it keeps the signature and what the product's rules make of it. Models that the file has
already are left out, so that the same command goes on. Nothing is timed.

``--check`` asks today's rules for each signature of a file and prints what differs; then the exit
code is 1. Neither a framework nor a model is needed for it. ``--accept`` writes today's meanings
into the file, for differences that are wanted.

A file is JSON lines, compressed by xz. The first one has the models that are in it and the versions
of the libraries; each other one is a distinct call, with its meaning as :func:`meaning` has it.
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
from pydlbench.records.operator import RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.records.user_model import UserInput, UserModelSpec

__all__ = ["Meanings", "differences", "layer_text", "meaning"]

PHASES: Final = ("forward", "training")
FRAMEWORKS: Final = ("torch", "tensorflow", "onnxruntime")
_LIBRARIES: Final = (
    *("torch", "torchvision", "timm", "transformers", "tensorflow", "tensorflow-cpu", "keras"),
    "onnxruntime",
)
_HERE: Final = os.path.relpath(__file__)
#: Differences that are printed.
_SHOWN: Final = 20
#: A file is written anew after so many seconds.
_KEEP_S: Final = 300.0


# -----------------------------------------------------------------------------
# Meanings.


def meaning(call: RecordedCall) -> dict[str, Any]:
    """Return what the product's rules make of a call, what is empty or unknown left out.

    - ``kind``: ``product``, ``view``, ``other``...
    - ``layers``: the descriptor of each with its pass, as :func:`layer_text` has it;
      ``layers_missing``: why there are none.
    - ``flops``, ``product_flops``, ``flops_missing``: as above.
    - ``bytes``, ``bytes_missing``: least bytes moved.
    - ``note``, ``dtypes``.
    """
    found = meaning_of(call)
    told = {
        "kind": found.kind,
        "layers": [layer_text(one) for one in found.layers],
        "layers_missing": found.layers_missing,
        "flops": found.flops,
        "product_flops": found.product_flops,
        "flops_missing": found.flops_missing,
        "bytes": found.bytes,
        "bytes_missing": found.bytes_missing,
        "note": found.note,
        "dtypes": list(found.dtypes),
    }
    return {key: value for key, value in told.items() if value not in (None, [])}


def layer_text(work: LayerPass) -> str:
    """Return a layer with its pass: ``conv mb2ic3ih8oc4kh3 backward-data``.

    Behind the pass stands ``training`` where a forward pass keeps something for a backward one.
    """
    trains = work.pass_ == "forward" and work.propagation == "training"
    return f"{_descriptor(work.layer)} {work.pass_}{' training' if trains else ''}"


@functools.cache
def _descriptor(layer: Layer) -> str:
    """Return a layer's kind and descriptor, with the fields that no descriptor has."""
    pool = layer.mode if layer.kind.startswith("pool") else None
    plain = parse_problem(layer.problem, pool=pool).fields
    more = [f" {name}={value}" for name, value in layer.fields.items() if plain[name] != value]
    mode = f" {layer.mode}" if hasattr(layer, "mode") else ""
    return f"{layer.kind}{mode} {layer.problem}{''.join(more)}"


def differences(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the lines whose meanings are others by today's rules, and what differs in words."""
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
        path: of the file; one that is not there is empty.

    Attributes:
        path: of the file.
        models: that are in it, by framework and name, with the distinct calls of each.
        libraries: their versions by name.
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
        """Take a model's calls; return how many are new."""
        before = len(self.lines)
        for one in calls:
            key = one.signature, str(one.direction)
            if key not in self.lines:
                self.lines[key] = {
                    "framework": framework,
                    "operator": one.operator,
                    "direction": one.direction,
                    "bytes": one.bytes,
                    "signature": one.signature,
                    "meaning": meaning(one),
                    **({"trained": one.trained} if one.trained else {}),
                }
        self.models[model] = len(calls)
        return len(self.lines) - before

    def write(self) -> None:
        """Write the file, whole or not at all."""
        beside = self.path.with_name(f"{self.path.name}.new")
        # Alike beside alike: they take less.
        ordered = sorted(
            self.lines.values(),
            key=lambda one: (one["framework"], one["operator"], one["signature"], one["direction"]),
        )
        head = {"models": self.models, "libraries": self.libraries}
        with lzma.open(beside, "wt", encoding="utf-8", preset=6) as file:
            for one in (head, *ordered):
                file.write(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n")
        beside.replace(self.path)


# -----------------------------------------------------------------------------
# What is recorded.


class Model(NamedTuple):
    """A step to be recorded.

    Attributes:
        name: of the model, its library and how it is run.
        make: returns the step.
    """

    name: str
    make: Callable[[], StepSpec]


def _step(name: str, **how: Any) -> Model:
    return Model(f"{how['framework']} {name} {how['phase']}", lambda: StepSpec(**how))


def torch_models() -> Iterator[Model]:
    """Yield steps in PyTorch: of the catalogue, of layers, of other libraries from small to large.

    Those of the catalogue compute nothing while they are listed.
    """
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
    for one in everything:
        if one.model in _VARIED:
            for name, more, own in _VARIATIONS:
                yield Model(
                    f"torch {one.name} training {name}",
                    functools.partial(_varied, one.step("training"), more, own),
                )
    for one in everything:
        for phase in PHASES:
            yield Model(f"torch {one.name} {phase}", functools.partial(one.step, phase))


def _in_turn(models: Iterable[Any]) -> list[Any]:
    """Return models of each library in turn, from small to large."""
    by_library: dict[str, list[Any]] = {}
    for one in sorted(models, key=_size):
        by_library.setdefault(one.builder, []).append(one)
    rounds = itertools.zip_longest(*by_library.values())
    return [one for together in rounds for one in together if one is not None]


#: Of these, steps are recorded in other precisions and layouts and with other optimizers, too.
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


def _size(one: Any) -> int:
    """Return a model's weights; those of other libraries than torchvision are small ones."""
    if one.builder != "vision":
        return 0
    from torchvision import models

    weights: int = models.get_model_weights(one.model).DEFAULT.meta["num_params"]
    return weights


@functools.cache
def _batched() -> frozenset[str]:
    """Return the models of the catalogue that take another batch."""
    found = set()
    for name in model_names():
        try:
            build_model(name, batch=2)
        except PydlbenchError:
            continue
        found.add(name)
    return frozenset(found)


def _import_torchvision() -> None:
    """Import torchvision, also where its compiled operators are for another PyTorch.

    No model here calls one, but it describes two of them, which have to be there for that.
    """
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", arguments)
        importlib.import_module("torchvision")


def torch_layers() -> Any:
    """Build a model of PyTorch that has layers which the others lack."""
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


#: Of keras.applications, one of each family, and the smallest images that it takes.
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
    """Build a model of Keras that has layers which the applications lack."""
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


#: Models whose forward steps are exported as ONNX files: by their builders in ``zoo.py``.
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
    """Yield steps of ONNX files: of one with many nodes, and of exported models."""
    _import_torchvision()
    own_models = importlib.import_module("own_models")
    folder = Path(tempfile.mkdtemp(prefix="meanings-"))
    exported = {
        one.name: one.step("forward")
        for one in own_models.imported()
        if one.model in _EXPORTED[one.builder]
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


#: Nodes that the exported models lack: operator, shapes of what it reads (a list is a constant's
#: whole numbers), attributes.
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
    for number, (operator, reads, attributes) in enumerate(_NODES):
        names = []
        for place, one in enumerate(reads):
            name = "" if one is None else f"{operator}{number}_{place}"
            names.append(name)
            if isinstance(one, list):
                constants.append(numpy_helper.from_array(np.array(one, np.int64), name))
            elif one is not None:
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, one))
        name = f"{operator}_{number}"
        nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        outputs.append(onnx.ValueInfoProto(name=name))
    graph = helper.make_graph(nodes, "nodes", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


_MODELS: Final = {
    "torch": torch_models,
    "tensorflow": tensorflow_models,
    "onnxruntime": onnxruntime_models,
}


def record(kept: Meanings, framework: str, until: float, only: Sequence[str]) -> None:
    """Record a framework's models until a moment of ``time.monotonic``; write the file."""
    from pydlbench.backends.steps import requests

    create = importlib.import_module(f"pydlbench.backends.{framework}.backend").create
    backend = create("cpu")
    written = time.monotonic()
    for number, model in enumerate(_MODELS[framework]()):
        if model.name in kept.models or (only and not set(only) & set(model.name.split())):
            continue
        if time.monotonic() > until:
            break
        begin = time.monotonic()
        try:
            calls = requests.request_call_list(backend, model.make().to_dict()).facts.calls
        except (PydlbenchError, MemoryError) as error:
            print(f"{number} {model.name}: {' '.join(str(error).split())[:300]}", flush=True)
            continue
        new = kept.add(model.name, framework, calls)
        seconds = time.monotonic() - begin
        print(f"{number} {model.name}: {len(calls)}, {new} new, {seconds:.1f} s", flush=True)
        if time.monotonic() > written + _KEEP_S:
            kept.write()
            written = time.monotonic()
    for one in _LIBRARIES:
        try:
            kept.libraries[one] = importlib.metadata.version(one)
        except importlib.metadata.PackageNotFoundError:
            continue
    kept.write()


# -----------------------------------------------------------------------------
# Files that are there.


def check(kept: Meanings) -> int:
    """Print how many meanings differ, and the first of them; return how many."""
    different = list(differences(kept.lines.values()))
    for line, words in different[:_SHOWN]:
        print(f"{line['direction']} {line['signature'][:400]}\n{words}")
    by_operator = collections.Counter(line["operator"] for line, _ in different)
    models = f"{len(kept.models)} steps of models"
    print(f"{len(different)} of {len(kept.lines)} meanings differ; {models}")
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
    kept = args.check or args.accept
    if kept is not None and not kept.exists():
        parser.error(f"{kept}: no such file; nearest: --record {kept}")
    return args


def main() -> int:
    """Record, check or accept; return 1 if meanings differ."""
    args = read()
    if args.record is not None:
        until = time.monotonic() + 60 * args.minutes
        kept = Meanings(args.record)
        for one in args.frameworks:
            record(kept, one, until, args.models)
        print(f"{len(kept.models)} steps of models, {len(kept.lines)} distinct calls")
        return 0
    kept = Meanings(args.check or args.accept)
    if args.accept is not None:
        for line in kept.lines.values():
            line["meaning"] = meaning(_call(line))
        kept.write()
        print(f"{len(kept.lines)} distinct calls")
        return 0
    kept.lines = {
        key: one for key, one in kept.lines.items() if one["framework"] in args.frameworks
    }
    return int(check(kept) > 0)


if __name__ == "__main__":
    sys.exit(main())
