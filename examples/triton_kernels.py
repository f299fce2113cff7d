"""Kernels of your own in Triton, as rows beside those of libraries.

    pydlbench layers --shape relu:mb128ic96ih55 --backend native,torch,triton_kernels.py:relu
    pydlbench layers --shape 4096x4096:4096x4096 --backend native,torch,triton_kernels.py:mm

A launcher is given the tensors of the pass by their roles, and fills the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch


@triton.jit
def _relu(src, dst, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(dst + at, tl.maximum(tl.load(src + at, mask=at < n), 0.0), mask=at < n)


def relu(src: torch.Tensor, dst: torch.Tensor) -> None:
    """Write the larger of each element and zero."""
    n = src.numel()
    _relu[(triton.cdiv(n, 4096),)](src, dst, n, block=4096, num_warps=8)


@triton.jit
def _mm(a, b, c, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr, g: tl.constexpr):
    # So many rows of tiles at a time share their columns in the L2 cache.
    pid = tl.program_id(0)
    nm, nn = tl.cdiv(m, bm), tl.cdiv(n, bn)
    group = pid // (g * nn)
    first = group * g
    size = tl.minimum(nm - first, g)
    pm = first + (pid % (g * nn)) % size
    pn = (pid % (g * nn)) // size
    rm, rn, rk = pm * bm + tl.arange(0, bm), pn * bn + tl.arange(0, bn), tl.arange(0, bk)
    pa = a + rm[:, None] * k + rk[None, :]
    pb = b + rk[:, None] * n + rn[None, :]
    acc = tl.zeros((bm, bn), dtype=tl.float32)
    for _ in range(0, k, bk):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += bk
        pb += bk * n
    tl.store(c + rm[:, None] * n + rn[None, :], acc.to(c.dtype.element_ty))


def mm(src: torch.Tensor, weights: torch.Tensor, dst: torch.Tensor) -> None:
    """Write a product of matrices whose sides are multiples of the tile's."""
    m, k = src.shape[-2:]
    n = weights.shape[-1]
    if m % 128 or n % 256 or k % 64:
        raise ValueError(f"{m}x{k} by {k}x{n}: sides are not multiples of the tile's 128x256x64")
    grid = (triton.cdiv(m, 128) * triton.cdiv(n, 256),)
    _mm[grid](src, weights, dst, m, n, k, 128, 256, 64, 8, num_warps=8, num_stages=3)
