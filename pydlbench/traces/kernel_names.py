"""Kernels by what their names say: a category, a short name, and the ops of generated kernels."""

import functools
import re
from typing import Final

#: Categories in the order in which the patterns are tried, each with words in kernels' names.
_PATTERNS: Final = tuple(
    (category, re.compile(words, re.IGNORECASE))
    for category, words in (
        (
            "collective",
            (
                r"nccl|rccl|oneccl|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter"
                r"|all_?to_?all"
            ),
        ),
        ("copy", r"^memcpy|^copybuffer|amd_rocclr_copy"),
        ("fill", r"^memset|amd_rocclr_fill"),
        (
            "attention",
            (
                r"flash|fmha|attention|attn|mha_|paged_kv|\bsdpa|efficient_att|mla_decode"
                r"|_fwd_kernel_stage"
            ),
        ),
        (
            "convolution",
            (
                r"conv(?!ert)|fprop|dgrad|wgrad|winograd|miopen.*(fwd|bwd|wrw)|igemm_(fwd|bwd|wrw)"
                r"|im2col|col2im"
            ),
        ),
        (
            "product",
            (
                r"gemm|gemv|cublas|cijk_|matmul|cutlass(?!.*conv)|nvjet|xmma|splitk|hipblas|tensile"
                r"|dot_kernel|bmm|mxfp|fp4.*mm|moe_kernel|_mm_"
            ),
        ),
        ("norm", r"norm|welford|bn_(fw|bw)"),
        ("softmax", r"softmax|log_?sum_?exp"),
        ("pooling", r"pool"),
        ("gather", r"gather|scatter|embedding|index|take|topk|sort|scan|cumsum|radix|unique"),
        ("optimizer", r"adam|sgd|lamb(?!da)|momentum"),
        ("loss", r"nll_loss|cross_entropy|mse"),
        ("random", r"philox|distribution|dropout|rand|bernoulli"),
        ("reduction", r"reduce|triton_(red|per)_|argmax|argmin"),
        (
            "data movement",
            (
                r"copy|clone|cat_?array|concat|transpose|permute|nchwtonhwc|nhwctonchw|convert"
                r"|(?<!broad)cast|to_copy|batched_?transpose|quantize(?!d)|fill"
            ),
        ),
        (
            "element-wise",
            r"elementwise|triton_poi_|vectorized|pointwise|add|mul|relu|gelu|silu|activation|swiglu|rotary|rope",
        ),
    )
)
#: Triton kernels that PyTorch's compiler names after the operators that it fused.
_GENERATED: Final = re.compile(r"triton_(poi|red|per|tem|for)_fused_(.*?)(?:_\d+)?$")
_GENERATED_CATEGORIES: Final = {"poi": "element-wise", "red": "reduction", "per": "reduction"}
_LONGEST: Final = 60


@functools.lru_cache(maxsize=1 << 14)
def category_of(name: str) -> str:
    """Return the category that a kernel's name says; ``other`` if it says none.

    Args:
        name: of the kernel, mangled or not.
    """
    generated = _GENERATED.fullmatch(name)
    if generated and generated[1] in _GENERATED_CATEGORIES:
        if re.search(r"norm|rsqrt", generated[2]):
            return "norm"
        if "softmax" in generated[2]:
            return "softmax"
        return _GENERATED_CATEGORIES[generated[1]]
    return next((category for category, words in _PATTERNS if words.search(name)), "other")


@functools.lru_cache(maxsize=1 << 14)
def short_name(name: str) -> str:
    """Return a kernel's name without its namespaces, template arguments and parameters."""
    text = re.sub(r"\(anonymous namespace\)::", "", name).strip()
    if text.startswith("_Z"):
        words = _mangled_words(text)
        return words[-1][:_LONGEST] if words else text[:_LONGEST]
    text = text.removeprefix("void ")
    functors = re.findall(r"(\w+(?:Functor|_kernel_cuda|_functor)\w*)", text)
    head = re.split(r"[<(]", text, maxsplit=1)[0].rpartition("::")[2] or text
    # PyTorch's element-wise kernels are told apart by what they are templates of.
    if functors and re.search(r"elementwise_kernel|reduce_kernel|multi_tensor_apply", head):
        head = f"{head}: {functors[0]}"
    return head[:_LONGEST]


def _mangled_words(name: str) -> list[str]:
    """Return the identifiers at the head of a mangled name: its namespaces and the function."""
    words, place = [], 3 if name.startswith("_ZN") else 2
    while match := re.compile(r"[LK]*(\d+)").match(name, place):
        begin, size = match.end(), int(match[1])
        words.append(name[begin : begin + size])
        place = begin + size
        if not name.startswith("_ZN"):
            break
    return [word for word in words if not word.startswith("_GLOBAL__N")]


def fused_operators(name: str) -> tuple[str, ...]:
    """Return the operators that a generated kernel's name lists; empty of another kernel."""
    match = _GENERATED.fullmatch(name)
    return tuple(word for word in match[2].strip("_").split("_") if word) if match else ()
