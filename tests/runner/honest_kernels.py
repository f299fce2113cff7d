"""Kernels that do their work in each call, in many ways; none may be refused."""

import ctypes
import mmap
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.nn import functional

pool = ThreadPoolExecutor(2)
scratch = {}


def relu_out(src, dst):
    torch.clamp_min(src, 0, out=dst)


def relu_copied(src, dst):
    dst.copy_(torch.relu(src))


def relu_in_place_on_the_output(src, dst):
    dst.copy_(src)
    dst.relu_()


def relu_numpy(src, dst):
    np.maximum(src.numpy(), 0, out=dst.numpy())


def relu_chunked(src, dst):
    for first in range(0, src.numel(), 100):
        torch.clamp_min(src.view(-1)[first : first + 100], 0, out=dst.view(-1)[first : first + 100])


def relu_backwards(src, dst):
    for image in reversed(range(len(src))):
        dst[image] = src[image].clamp_min(0)


def relu_own_threads(src, dst):
    threads = [
        threading.Thread(target=relu_out, args=(src[image], dst[image]))
        for image in range(len(src))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def relu_pool(src, dst):
    list(pool.map(relu_out, src, dst))


def relu_scratch(src, dst):
    room = scratch.setdefault(src.shape, torch.empty_like(src))
    torch.clamp_min(src, 0, out=room)
    dst.copy_(room)


def relu_channels_last(src, dst):
    dst.copy_(torch.relu(src.contiguous(memory_format=torch.channels_last)))


def relu_in_double(src, dst):
    dst.copy_(src.double().clamp_min(0))


def relu_kept_by_all_values(src, dst):
    key = src.numpy().tobytes()
    if key not in scratch:
        scratch[key] = src.clamp_min(0)
    dst.copy_(scratch[key])


def relu_by_words(*, src, dst):
    relu_out(src, dst)


def _numba():
    import numba

    @numba.njit
    def run(src, dst):
        for index in range(src.size):
            dst[index] = max(src[index], np.float32(0))

    return run


def relu_numba(src, dst):
    if "numba" not in scratch:
        scratch["numba"] = _numba()
    scratch["numba"](src.view(-1).numpy(), dst.view(-1).numpy())


def relu_numba_parallel(src, dst):
    if "parallel" not in scratch:
        import numba

        @numba.njit(parallel=True)
        def run(src, dst):
            for index in numba.prange(src.size):
                dst[index] = max(src[index], np.float32(0))

        scratch["parallel"] = run
    scratch["parallel"](src.view(-1).numpy(), dst.view(-1).numpy())


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, src):
        ctx.save_for_backward(src)
        return src.clamp_min(0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0)


def relu_autograd_function(src, dst):
    dst.copy_(Clamp.apply(src))


def relu_of_a_generator_of_modules(src, dst):
    for layer in (module for module in (torch.nn.Identity(), torch.nn.ReLU())):
        src = layer(src)
    dst.copy_(src)


def relu_other_number_of_threads(src, dst):
    torch.set_num_threads(1)
    relu_out(src, dst)


def relu_strided(src, dst):
    dst.transpose(-1, -2).copy_(src.transpose(-1, -2).clamp_min(0))


def relu_where(src, dst):
    torch.where(src > 0, src, torch.zeros(()), out=dst)


def relu_jit(src, dst):
    if "jit" not in scratch:
        scratch["jit"] = torch.jit.trace(lambda x: x.clamp_min(0), src)
    dst.copy_(scratch["jit"](src))


jobs, done = queue.SimpleQueue(), queue.SimpleQueue()


def _serve():
    while True:
        relu_out(*jobs.get())
        done.put(None)


def relu_thread_with_a_queue(src, dst):
    """One thread lives as long as the process, and is waited for."""
    if "thread" not in scratch:
        scratch["thread"] = threading.Thread(target=_serve, daemon=True)
        scratch["thread"].start()
    jobs.put((src, dst))
    done.get()


def relu_numpy_parts(src, dst):
    given, result = src.numpy(), dst.numpy()
    result[:] = 0
    np.copyto(result, given, where=given > 0)


def relu_by_bits(src, dst):
    bits = src.view(torch.int32)
    dst.view(torch.int32).copy_(bits & ~(bits >> 31))


def relu_with_a_growing_log(src, dst):
    scratch.setdefault("log", []).append(src.shape)
    relu_out(src, dst)


def product_padded(src, weights, dst):
    given = functional.pad(src, (0, 3)), functional.pad(weights, (0, 0, 0, 3))
    torch.matmul(*given, out=dst)


def product_by_columns(src, weights, dst):
    for column in range(weights.shape[-1]):
        dst[..., column] = (src @ weights[..., column : column + 1])[..., 0]


def product_as_convolution(src, weights, dst):
    dst.copy_(functional.conv1d(src.t()[None], weights.t()[..., None])[0].t())


def product_of_batches(src, weights, dst):
    dst.copy_(torch.bmm(src.expand(2, -1, -1), weights.expand(2, -1, -1))[0])


def product(src, weights, dst):
    torch.matmul(src, weights, out=dst)


def product_numpy(src, weights, dst):
    np.matmul(src.numpy(), weights.numpy(), out=dst.numpy())


def product_transposed(src, weights, dst):
    packed = weights.transpose(-1, -2).contiguous()
    dst.copy_(src @ packed.transpose(-1, -2))


def product_in_blocks(src, weights, dst):
    dst.zero_()
    for first in range(0, src.shape[-1], 16):
        dst += src[..., first : first + 16] @ weights[..., first : first + 16, :]


def product_einsum(src, weights, dst):
    dst.copy_(torch.einsum("...mk,...kn->...mn", src, weights))


def product_in_double(src, weights, dst):
    dst.copy_(src.double() @ weights.double())


def product_gradient(dst, weights, src):
    torch.matmul(dst, weights.transpose(-1, -2), out=src)


def product_in_float32(src, weights, dst):
    dst.copy_(src.float() @ weights.float())


def conv(src, weights, dst):
    dst.copy_(functional.conv2d(src, weights, padding=1))


def conv_channels_last(src, weights, dst):
    nhwc = torch.channels_last
    dst.copy_(
        functional.conv2d(
            src.contiguous(memory_format=nhwc), weights.contiguous(memory_format=nhwc), padding=1
        )
    )


def conv_unfolded(src, weights, dst):
    columns = functional.unfold(src, 3, padding=1)
    dst.copy_((weights.reshape(len(weights), -1) @ columns).view(dst.shape))


def conv_gradient(dst, weights, src):
    src.copy_(functional.conv_transpose2d(dst, weights, padding=1))


def conv_weights_gradient(src, dst, weights):
    weights.copy_(torch.nn.grad.conv2d_weight(src, weights.shape, dst, padding=1))


def softmax(src, dst):
    torch.softmax(src, -1, out=dst)


def softmax_gradient(dst, result, src):
    src.copy_(result * (dst - (dst * result).sum(-1, keepdim=True)))


def maximum(src, dst):
    dst.copy_(functional.max_pool2d(src, 2))


def maximum_gradient(src, dst):
    _, places = functional.max_pool2d(src, 2, return_indices=True)
    src.copy_(functional.max_unpool2d(dst, places, 2))


def relu_gradient(src, dst):
    src.copy_(dst * (src > 0))


def relu_compiled(src, dst):
    if "compiled" not in scratch:
        scratch["compiled"] = torch.compile(lambda x: x.clamp_min(0), dynamic=False)
    dst.copy_(scratch["compiled"](src))


def relu_in_place_on_a_view(src, dst):
    dst.view(-1)[:] = src.reshape(-1)
    dst.transpose(0, 1).clamp_(min=0)


def relu_by_a_generator(src, dst):
    def rows():
        for image in src:
            yield image.clamp_min(0)

    for room, row in zip(dst, rows(), strict=True):
        room.copy_(row)


def relu_in_c(src, dst):
    """Multiply with the sign, by addresses."""
    from_address = ctypes.POINTER(ctypes.c_float)
    shape = (src.numel(),)
    given = np.ctypeslib.as_array(ctypes.cast(src.data_ptr(), from_address), shape)
    result = np.ctypeslib.as_array(ctypes.cast(dst.data_ptr(), from_address), shape)
    np.multiply(given, given > 0, out=result)


def relu_in_a_process_of_its_own(src, dst):
    """Compute in a child that is waited for, in memory that both map."""
    size = src.numel() * 4
    with mmap.mmap(-1, size) as room:
        values = np.frombuffer(room, np.float32)
        child = os.fork()
        if not child:
            np.maximum(src.numpy().ravel(), 0, out=values)
            os._exit(0)
        os.waitpid(child, 0)
        dst.view(-1).copy_(torch.from_numpy(values.copy()))
        del values


def product_numba(src, weights, dst):
    if "product" not in scratch:
        import numba

        @numba.njit(parallel=True)
        def multiply(a, b, c):
            for row in numba.prange(a.shape[0]):
                for column in range(b.shape[1]):
                    total = np.float32(0)
                    for term in range(a.shape[1]):
                        total += a[row, term] * b[term, column]
                    c[row, column] = total

        scratch["product"] = multiply
    a, b, c = (x.numpy().reshape(x.shape[-2:]) for x in (src, weights, dst))
    scratch["product"](a, b, c)


def product_of_packed_weights(src, weights, dst):
    """Keep the packed weights as long as they are the same."""
    key = weights.numpy().tobytes()
    if scratch.get("key") != key:
        scratch.update(key=key, packed=weights.transpose(-1, -2).contiguous())
    dst.copy_(src @ scratch["packed"].transpose(-1, -2))


def product_by_strassen(src, weights, dst):
    a, b = src.reshape(src.shape[-2:]), weights.reshape(weights.shape[-2:])
    (a11, a12), (a21, a22) = (half.chunk(2, 1) for half in a.chunk(2, 0))
    (b11, b12), (b21, b22) = (half.chunk(2, 1) for half in b.chunk(2, 0))
    m1, m2, m3 = (a11 + a22) @ (b11 + b22), (a21 + a22) @ b11, a11 @ (b12 - b22)
    m4, m5 = a22 @ (b21 - b11), (a11 + a12) @ b22
    m6, m7 = (a21 - a11) @ (b11 + b12), (a12 - a22) @ (b21 + b22)
    rows = torch.cat([m1 + m4 - m5 + m7, m3 + m5], 1), torch.cat([m2 + m4, m1 - m2 + m3 + m6], 1)
    dst.copy_(torch.cat(rows).view(dst.shape))


def conv_by_fft(src, weights, dst):
    size = [side + 4 for side in src.shape[-2:]]
    given = torch.fft.rfft2(functional.pad(src, (1, 1, 1, 1)), size)
    kernels = torch.fft.rfft2(weights.flip(-1, -2), size)
    whole = torch.fft.irfft2(torch.einsum("ncyx,ocyx->noyx", given, kernels), size)
    dst.copy_(whole[..., 2 : 2 + dst.shape[-2], 2 : 2 + dst.shape[-1]])


def conv_of_the_library(src, weights, dst):
    dst.copy_(functional.conv2d(src.to_mkldnn(), weights.to_mkldnn(), padding=1).to_dense())


def softmax_in_place(src, dst):
    dst.copy_(src).sub_(src.amax(-1, keepdim=True)).exp_().div_(dst.sum(-1, keepdim=True))


def maximum_by_windows(src, dst):
    dst.copy_(src.unfold(2, 2, 2).unfold(3, 2, 2).amax((-1, -2)))
