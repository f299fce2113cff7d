"""Counting along one spatial side of a sliding window, in closed form.

Output ``o`` and kernel tap ``k`` meet at input position ``o * stride + k * dilation - pad``. The
number of pairs that meet an element, not padding, determines the FLOPs of a direct kernel; the
number of distinct elements that they meet determines how much it reads. Counts in two or three
dimensions are products of such axes. They take O(log size) steps.
"""

import math
from dataclasses import dataclass


def extent(kernel: int, dilation: int) -> int:
    """Return the input positions that a window spans: ``(kernel - 1) * dilation + 1``."""
    return (kernel - 1) * dilation + 1


def output_size(size: int, window: int, stride: int, leading: int, trailing: int) -> int:
    """Return the number of windows in ``size`` elements with padding at both ends."""
    return (size + leading + trailing - window) // stride + 1


def trailing_pad(size: int, window: int, stride: int, leading: int, out: int) -> int:
    """Return the canonical one of the trailing pads that give ``out`` outputs.

    With a stride above one, several trailing pads give the same outputs, since the last positions
    are not read. The symmetric pad is chosen if it is among them, else the smallest. Layers that
    compute the same are then equal, and have the same descriptor. With fewer outputs than windows
    would fit, the pad is negative: minus the elements behind the last window.
    """
    for pad in (leading, 0):
        if output_size(size, window, stride, leading, pad) == out:
            return pad
    return (out - 1) * stride + window - size - leading


def derived_pad(size: int, window: int, stride: int, out: int) -> int:
    """Return the leading pad that follows from the output size: the smaller half of the total."""
    return max(0, (out - 1) * stride + window - size) // 2


def same_pads(size: int, window: int, stride: int) -> tuple[int, int]:
    """Return both pads of TensorFlow's ``SAME``: one window per stride, the smaller pad first."""
    total = max(0, (-(-size // stride) - 1) * stride + window - size)
    return total // 2, total - total // 2


def ceil_pad(size: int, window: int, stride: int, leading: int, trailing: int) -> int:
    """Return the trailing pad with which the number of windows is rounded up.

    As in PyTorch, no window begins in the padding behind the last element.
    """
    outputs = -(-(size + leading + trailing - window) // stride) + 1
    if (outputs - 1) * stride >= size + leading:
        outputs -= 1
    return max(0, (outputs - 1) * stride + window - size - leading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One spatial side of a convolution or pooling.

    Attributes:
        size: Input elements, without padding.
        out: Output elements.
        kernel: Taps of the window.
        stride: Input positions from one output to the next.
        dilation: Input positions from one tap to the next; 1 is dense.
        pad: Padding before the first element.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def taps(self) -> int:
        """Return the (output, tap) pairs that meet an input element and not padding."""
        return self._pairs(self.out, self.kernel, 0)

    def elements_inside(self) -> list[int]:
        """Return how many taps of each output's window meet an input element, not padding."""
        starts = (index * self.stride - self.pad for index in range(self.out))
        return [
            max(
                0,
                min(self.kernel - 1, (self.size - 1 - start) // self.dilation)
                - max(0, -(start // self.dilation))
                + 1,
            )
            for start in starts
        ]

    def touched_inputs(self) -> int:
        """Return the number of distinct input elements that outputs read.

        The pairs (o, k) and (o + dilation/g, k - stride/g), with g = gcd(stride, dilation), meet
        the same element, and only such pairs do. The pairs of one element are thus a chain, which
        has one link fewer than it has members: elements = pairs - links.
        """
        common = math.gcd(self.stride, self.dilation)
        links = self._pairs(
            self.out - self.dilation // common,
            self.kernel - self.stride // common,
            self.stride * self.dilation // common,
        )
        return self.taps() - links

    def used_outputs(self) -> int:
        """Return the outputs that depend on at least one input element."""
        return self._used(self.out, self.stride, self.kernel, self.dilation)

    def used_taps(self) -> int:
        """Return the kernel taps that meet at least one input element."""
        return self._used(self.kernel, self.dilation, self.out, self.stride)

    def _pairs(self, outs: int, kernel: int, offset: int) -> int:
        """Count o < outs, k < kernel whose position, shifted by ``offset``, is an element."""
        first = self.pad - offset
        return _count_pairs(first + self.size - 1, outs, self.stride, kernel, self.dilation) - (
            _count_pairs(first - 1, outs, self.stride, kernel, self.dilation)
        )

    def _used(self, count: int, step: int, others: int, other_step: int) -> int:
        """Count a < count for which some b < others puts a*step + b*other_step on an element."""
        if self.size < other_step:
            # The steps of b are wider than the input, so at most one b meets it: count the pairs.
            return self._pairs(self.out, self.kernel, 0)
        # The steps of b cannot jump over the input, so only the two ends of its reach matter.
        last = min(count - 1, (self.pad + self.size - 1) // step)
        reach = self.pad - (others - 1) * other_step
        first = max(0, -(-reach // step))
        return max(0, last - first + 1)


def _count_pairs(limit: int, count_a: int, step_a: int, count_b: int, step_b: int) -> int:
    """Count 0 <= a < count_a, 0 <= b < count_b with ``a * step_a + b * step_b <= limit``."""
    if limit < 0 or count_a <= 0 or count_b <= 0:
        return 0
    rows = min(count_b, limit // step_b + 1)
    # For small b every a fits; beyond that, a runs up to (limit - b * step_b) // step_a.
    full = min(rows, max(0, (limit - (count_a - 1) * step_a) // step_b + 1))
    partial = rows - full
    smallest = limit - (rows - 1) * step_b
    return full * count_a + partial + _floor_sum(partial, step_a, step_b, smallest)


def _floor_sum(count: int, divisor: int, slope: int, start: int) -> int:
    """Return the sum of ``(slope * i + start) // divisor`` over 0 <= i < count.

    The sum is the number of points below a line. They are counted by exchanging the axes, as
    Euclid's algorithm does. No argument is negative, and ``divisor`` is positive.
    """
    total = 0
    while count > 0:
        total += (slope // divisor) * (count * (count - 1) // 2) + (start // divisor) * count
        slope %= divisor
        start %= divisor
        top = slope * count + start
        count, start = divmod(top, divisor)
        divisor, slope = slope, divisor
        if divisor == 0:
            break
    return total
