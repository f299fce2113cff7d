"""The named layers of published networks, and their selection by the user.

All blocks of a transformer have the same shapes; the layers of one are listed without a graph.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import UnsupportedError, UsageError, nearest, unknown_word
from pydlbench.models import build_model, is_model, model_names
from pydlbench.models.flashinfer import read_problems
from pydlbench.models.lists import ListedLayer, ListEntry, check_op, read_list
from pydlbench.ops.descriptor import check_pool
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer

# -----------------------------------------------------------------------------
# Sources of named layers: models, two benchmarks of single layers, and transformers.


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """Named layers of a model, or of another source.

    Attributes:
        name: Name as typed on the command line: ``alexnet-owt``.
        title: Description of the model or source.
        batch: Images per step in the publication, and in the layers.
        source: Publication or code that the shapes are from.
        layers: Convolutions, products and poolings in execution order, named
            ``alexnet-owt/conv1``, without elementwise layers.
    """

    name: str
    title: str
    batch: int
    source: str
    layers: tuple[Layer, ...]


_LAYER_WISE: Final = "convnet"
_RECURRENT: Final = "deepbench"


def entry_names() -> tuple[str, ...]:
    """Return the names of all entries."""
    names = list(model_names())
    names.insert(names.index("mnist"), _LAYER_WISE)
    return (*names, *TRANSFORMERS, _RECURRENT)


@functools.cache
def load_entry(name: str) -> CatalogEntry:
    """Return an entry; the entry of a model has the layers of its graph.

    Raises:
        UsageError: There is no such entry.
    """
    if name == _LAYER_WISE:
        return _layer_wise()
    if name == _RECURRENT:
        return _recurrent()
    if name in TRANSFORMERS:
        sizes = TRANSFORMERS[name]
        return CatalogEntry(
            name=name,
            title=sizes.title,
            batch=sizes.batch,
            source=sizes.source,
            layers=sizes.layers(name),
        )
    if not is_model(name):
        raise unknown_word(f"{name}: no such model", name, entry_names())
    model = build_model(name)
    layers = (node.layer for node in model)
    return CatalogEntry(
        name=name,
        title=model.title,
        batch=model.batch,
        source=model.source,
        layers=tuple(layer for layer in layers if layer and layer.kind != "pointwise"),
    )


def is_entry(name: str) -> bool:
    """Whether there is an entry of that name."""
    return name in (_LAYER_WISE, _RECURRENT) or name in TRANSFORMERS or is_model(name)


def _layer_wise() -> CatalogEntry:
    """Return five convolutions that are in no model."""
    # Input channels, side, output channels, kernel.
    problems = {
        "L1": (3, 128, 96, 11),
        "L2": (64, 64, 128, 9),
        "L3": (128, 32, 128, 9),
        "L4": (128, 16, 128, 7),
        "L5": (384, 13, 384, 3),
    }
    batch = 128
    return CatalogEntry(
        name=_LAYER_WISE,
        title="convnet-benchmarks, layer-wise",
        batch=batch,
        source="soumith/convnet-benchmarks, README and torch7/layerwise_benchmarks",
        layers=tuple(
            build_layer(
                "conv",
                batch=batch,
                in_channels=inputs,
                in_size=side,
                out_channels=outputs,
                kernel=kernel,
                name=f"{_LAYER_WISE}/{name}",
            )
            for name, (inputs, side, outputs, kernel) in problems.items()
        ),
    )


def _recurrent() -> CatalogEntry:
    """Return the recurrent layers of a benchmark by cell, size of the state and steps.

    Of several sequence lengths only the shortest is included.
    """
    steps = {
        "lstm": {256: 150, 512: 25, 1024: 25, 1536: 50, 2048: 25, 4096: 25},
        "gru": {512: 1, 1024: 1500, 1536: 187, 2048: 187, 2560: 187, 2816: 187},
    }
    batch = 32
    return CatalogEntry(
        name=_RECURRENT,
        title="DeepBench, recurrent layers in training",
        batch=batch,
        source="baidu-research/DeepBench, code/kernels/rnn_problems.h: training_set, batch 32",
        layers=tuple(
            build_layer(
                cell,
                steps=length,
                batch=batch,
                in_size=size,
                hidden=size,
                name=f"{_RECURRENT}/{cell}{size}",
            )
            for cell, lengths in steps.items()
            for size, length in lengths.items()
        ),
    )


# -----------------------------------------------------------------------------
# Selection by name or glob, and the nearest names if nothing matches.

_DEFAULT: Final = "alexnet"
_HINT: Final = "list them with: pydlbench shapes"


def find_named(pattern: str, batch: int | None = None) -> list[Layer]:
    """Return the layers of the catalog that ``pattern`` names, in the catalog's order.

    ``vgg16/conv3_2`` is one layer. ``conv3`` is AlexNet's layer, or, if AlexNet has none, the layer
    of the first model that has one, provided that all models have the same problem. ``vgg16`` means
    all its layers. A glob with ``/`` is matched with full names; a glob without ``/`` with
    AlexNet's layers and, if none of them matches, with all layers.

    Args:
        pattern: A name or glob.
        batch: Batch of the layers; None for each model's default.

    Raises:
        UsageError: Nothing matches (names the nearest ones), or a bare name is ambiguous.
    """
    if any(character in pattern for character in "*?["):
        return _with_batches(_glob(pattern), batch)
    if "/" in pattern:
        model, _, bare = pattern.partition("/")
        if is_entry(model):
            layers = [layer for layer in load_entry(model).layers if _bare(layer) == bare]
            if layers:
                return _with_batches(layers, batch)
        raise _unknown(pattern)
    # The default model first: no other model needs to be built for its layers.
    for layer in load_entry(_DEFAULT).layers:
        if _bare(layer) == pattern:
            return _with_batches([layer], batch)
    if is_entry(pattern):
        return _with_batches(load_entry(pattern).layers, batch)
    matches = _with_batches([layer for layer in _all_layers() if _bare(layer) == pattern], batch)
    if not matches:
        raise _unknown(pattern)
    if len({(layer.kind, layer.problem) for layer in matches}) > 1:
        names = ", ".join(f"{layer.name} ({layer.problem})" for layer in matches)
        raise UsageError(f"{pattern}: ambiguous, as these differ: {names}")
    return matches[:1]


def with_batch(layer: Layer, batch: int | None) -> Layer:
    """Return the layer with another batch; None keeps its batch.

    Raises:
        UsageError: The layer cannot have this batch; names the layer.
    """
    try:
        return layer if batch is None else layer.with_batch(batch)
    except UsageError as error:
        raise UsageError(f"{layer.name or layer.problem}: {error}") from None


def _all_layers() -> Iterator[Layer]:
    for name in entry_names():
        yield from load_entry(name).layers


def _bare(layer: Layer) -> str:
    """Return the name of a catalog layer without the model."""
    return (layer.name or "").partition("/")[2]


def _with_batches(layers: Sequence[Layer], batch: int | None) -> list[Layer]:
    return [with_batch(layer, batch) for layer in layers]


def _glob(pattern: str) -> list[Layer]:
    matches: list[Layer] = []
    if "/" not in pattern:
        layers = load_entry(_DEFAULT).layers
        matches = [layer for layer in layers if fnmatchcase(_bare(layer), pattern)]
    if not matches:
        model = pattern.partition("/")[0]
        matches = [
            layer
            for layer in (load_entry(model).layers if is_entry(model) else _all_layers())
            if fnmatchcase(layer.name or "", pattern) or fnmatchcase(_bare(layer), pattern)
        ]
    if not matches:
        raise UsageError(f"{pattern}: matches no layer; {_HINT}")
    return matches


def _unknown(name: str) -> UsageError:
    choices = _nearest_in_model(name) if "/" in name else _nearest_bare(name)
    help_ = f"nearest: {', '.join(choices)}" if choices else _HINT
    return UsageError(f"{name}: no such layer; {help_}")


def _nearest_in_model(name: str) -> list[str]:
    """Return near misses of ``model/layer``: first correct the model, then the layer."""
    model, _, bare = name.partition("/")
    models = [model] if is_entry(model) else nearest(model, entry_names())
    choices: list[str] = []
    for candidate in models:
        names = [_bare(layer) for layer in load_entry(candidate).layers]
        close = nearest(bare, names, 3 if model == candidate else 1)
        choices += [f"{candidate}/{layer}" for layer in close]
    return choices[:3] or [f"{candidate}/*" for candidate in models]


def _nearest_bare(name: str) -> list[str]:
    """Return near misses of a bare name: AlexNet's layers bare, others with their first model."""
    names = {model: f"{model}/*" for model in entry_names()}
    for layer in _all_layers():
        full = layer.name or ""
        in_default = full.startswith(f"{_DEFAULT}/")
        names.setdefault(_bare(layer), _bare(layer) if in_default else full)
    return [names[match] for match in nearest(name, names)]


# -----------------------------------------------------------------------------
# Selection by names, globs, descriptors, ``@file``.


def find_layers(
    patterns: Sequence[str], batch: int | None = None, pool: str | None = None, **options: Any
) -> list[Layer]:
    """Return the layers that ``patterns`` select, in order; see :func:`find_listed`."""
    return list(
        dict.fromkeys(found.layer for found in find_listed(patterns, batch, pool, **options))
    )


def find_listed(
    patterns: Sequence[str],
    batch: int | None = None,
    pool: str | None = None,
    *,
    op: str | None = None,
    option: str = "--shape",
    tell: Callable[[str], object] | None = None,
) -> list[ListedLayer]:
    """Return the layers that ``patterns`` select, in order and without duplicates.

    Args:
        patterns: Names (``conv3``, ``vgg16/conv3_2``, ``vgg16``), globs (``vgg16/*``), descriptors,
            or ``@file`` with these, and with options of benchdnn (see
            :mod:`pydlbench.models.lists`).
        batch: Batch of all layers; None for the batch in the catalog or descriptor.
        pool: Pooling mode for descriptors without ``oc``; see :func:`parse_problem`.
        op: Op of descriptors without a prefix: a driver of benchdnn, or a prefix. None for the
            driver after which a file's folder is named.
        option: Prefix of patterns in error messages; may be empty.
        tell: Called with a line about what is left out or ignored, if not None.

    Raises:
        UsageError: A pattern is invalid; names the pattern (and the line of the file), the reason
            and the nearest valid choice.
    """
    check_pool(pool)
    check_op(op)
    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: too small; at least 1")
    selected: dict[ListedLayer, None] = {}
    pooled = False
    for pattern in patterns:
        missing: Counter[str] = Counter()
        omitted: Counter[str] = Counter()
        without_batch = 0
        ignored: dict[str, None] = {}
        for entry in _entries(pattern, op, f"{option} " if option else "", ignored):
            try:
                layers = _listed(entry, batch, pool)
            except UnsupportedError as error:
                missing[str(error)] += 1
                continue
            except UsageError as error:
                raise UsageError(f"{entry.where}{error}") from None
            pooled = pooled or (entry.described and layers[0].layer.op == "pool")
            without_batch += entry.without_batch
            omitted.update(row.omitted for row in layers if row.omitted)
            selected.update(dict.fromkeys(layers))
        notes = [f"{count} of its problems are left out: {text}" for text, count in missing.items()]
        notes += [f"of {count} problems is left out: {text}" for text, count in omitted.items()]
        if without_batch and batch is None:
            notes.append(f"batch 1 of {without_batch} problems without mb (benchdnn: --mb=2)")
        if missing and not selected:
            raise UsageError(f"{option} {pattern}: {notes[0]}".strip())
        if ignored:
            notes.append(f"ignored options: {' '.join(ignored)}")
        for note in notes:
            (tell or str)(f"{pattern.strip().removeprefix('@')}: {note}")
    check_pool_used(pool, used=pooled)
    return list(selected)


def _listed(entry: ListEntry, batch: int | None, pool: str | None) -> list[ListedLayer]:
    """Return the layers of a name or descriptor."""
    if entry.described:
        found = entry.layers(pool)
        return [replace(row, layer=with_batch(row.layer, batch)) for row in found]
    return [ListedLayer(layer=layer) for layer in find_named(entry.text, batch)]


def check_pool_used(pool: str | None, *, used: bool) -> None:
    """Check that ``--pool`` applies to a descriptor.

    Raises:
        UsageError: No layer is a descriptor of a pooling.
    """
    if pool is not None and not used:
        raise UsageError(f"--pool {pool}: no layer is a descriptor of a pooling; nearest: omit it")


def _entries(
    given: str, op: str | None, prefix: str, ignored: dict[str, None]
) -> Iterator[ListEntry]:
    """Yield a pattern, or the names and descriptors of a file."""
    pattern = given.strip()
    if not pattern:
        raise UsageError(f"{prefix}{given!r}: empty; expected a name, such as conv3")
    if not pattern.startswith("@"):
        yield ListEntry(text=pattern, where=prefix, op=op or "")
        return
    empty = True
    path, argument = Path(pattern[1:]), f"{prefix}{pattern}"
    if path.suffix in (".json", ".jsonl"):
        yield from read_problems(path, argument)
        return
    for entry in read_list(path, argument, op, {}, ignored):
        if entry.text.startswith("@"):
            raise UsageError(
                f"{entry.where}{entry.text}: a file inside a file; expected a name or descriptor"
            )
        empty = False
        yield entry
    if empty:
        raise UsageError(f"{prefix}{pattern}: no layers in it; expected one per line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The sizes of a transformer.

    Attributes:
        title: Description of the model.
        source: Publication or code that the sizes are from.
        batch: Sequences per step.
        length: Tokens per sequence.
        width: Size of a token's vector, over all heads.
        heads: Number of heads of an attention.
        hidden: Width between the two products of the feed-forward block.
        vocabulary: Number of tokens.
        fused_projections: Whether a single product computes queries, keys and values; if not,
            three equal products do.
        epsilon: Number added to the variance in normalisations.
    """

    title: str
    source: str
    batch: int
    length: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    fused_projections: bool
    epsilon: float

    def layers(self, name: str) -> tuple[Layer, ...]:
        """Return the layers of one block and of the head, in execution order.

        An attention's products are counted and timed in full, even if later tokens are masked.

        Args:
            name: Name of the model, the prefix of the layers' names.
        """

        def product(layer: str, k: int, n: int) -> Layer:
            rows = self.batch * self.length
            return build_layer("gemm", m=rows, k=k, n=n, samples=self.batch, name=f"{name}/{layer}")

        def attention(layer: str, k: int, n: int, order: str) -> Layer:
            return build_layer(
                "gemm",
                m=self.length,
                k=k,
                n=n,
                batch_count=self.batch * self.heads,
                weights_tag=order,
                samples=self.batch,
                name=f"{name}/{layer}",
            )

        def memory_bound(layer: str, op: str, width: int, **fields: Any) -> Layer:
            # By default, tokens are channels with one row.
            sizes = {"channels": self.length, "batch": self.batch, "width": width, **fields}
            return build_layer(op, name=f"{name}/{layer}", **sizes)

        def scores(op: str) -> Layer:
            return memory_bound(
                f"attention_{op}", op, self.length, channels=self.heads, height=self.length
            )

        head = self.width // self.heads
        projection = ("qkv", 3 * self.width) if self.fused_projections else ("query", self.width)
        return (
            product(projection[0], self.width, projection[1]),
            attention("attention_scores", head, self.length, "nk"),
            scores("softmax"),
            attention("attention_context", self.length, head, "kn"),
            product("attention_output", self.width, self.width),
            memory_bound("norm", "layernorm", self.width, epsilon=self.epsilon),
            product("ffn_up", self.width, self.hidden),
            memory_bound("ffn_gelu", "gelu-tanh", self.hidden),
            product("ffn_down", self.hidden, self.width),
            product("vocabulary", self.width, self.vocabulary),
        )


#: Transformers by name.
TRANSFORMERS: Final[Mapping[str, Transformer]] = {
    "bert-base": Transformer(
        title="BERT base (Devlin et al., 2018), a block and the head",
        source="google-research/bert, README: BERT-Base, Uncased; run_pretraining.py's batch",
        batch=32,
        length=128,
        width=768,
        heads=12,
        hidden=3072,
        vocabulary=30522,
        fused_projections=False,
        epsilon=1e-12,
    ),
    "gpt2-small": Transformer(
        title="GPT-2 small (Radford et al., 2019), a block and the head",
        source="openai/gpt-2, src/model.py; the batch of karpathy/nanoGPT, train.py",
        batch=12,
        length=1024,
        width=768,
        heads=12,
        hidden=3072,
        vocabulary=50257,
        fused_projections=True,
        epsilon=1e-5,
    ),
}
