"""The named layers of transformers: the layers of one block, and the product with the vocabulary.

All blocks of a model have the same shapes; there is no graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer


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
