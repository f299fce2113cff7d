// Element-wise arithmetic of up to three operands.
#pragma once

#include "cpu/pointwise/isa/functions.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

// The elements of an operand, or its broadcast element.
template <typename T>
struct Operand {
  const T* from;
  bool whole;
  Floats one;

  PYDLBENCH_INLINE Floats operator()(Index i, Index lanes) const {
    return whole ? load_lanes(from + i, lanes) : one;
  }
};

template <typename T>
PYDLBENCH_INLINE Operand<T> operand(const void* from, bool whole) {
  const auto* elements = static_cast<const T*>(from);
  return {elements, whole, broadcast(whole ? 0.0f : element(elements))};
}

// dst[i] = map(x) and so on. Masked lanes, which may be 0 / 0, are not stored.
template <typename T, typename Map>
PYDLBENCH_INLINE void map1(const void* const* p, const bool* whole, T* dst, Index count,
                           bool streaming, Map&& map) {
  const auto x = operand<T>(p[0], whole[0]);
  fill(dst, count, streaming, [&](Index i, Index lanes) { return map(x(i, lanes)); });
}
template <typename T, typename Map>
PYDLBENCH_INLINE void map2(const void* const* p, const bool* whole, T* dst, Index count,
                           bool streaming, Map&& map) {
  const auto x = operand<T>(p[0], whole[0]), y = operand<T>(p[1], whole[1]);
  fill(dst, count, streaming, [&](Index i, Index lanes) { return map(x(i, lanes), y(i, lanes)); });
}
template <typename T, typename Map>
PYDLBENCH_INLINE void map3(const void* const* p, const bool* whole, T* dst, Index count,
                           bool streaming, Map&& map) {
  const auto x = operand<T>(p[0], whole[0]), y = operand<T>(p[1], whole[1]),
             z = operand<T>(p[2], whole[2]);
  fill(dst, count, streaming,
       [&](Index i, Index lanes) { return map(x(i, lanes), y(i, lanes), z(i, lanes)); });
}

// x where the mask of bytes is not zero, else y.
template <typename T>
PYDLBENCH_INLINE void select(const void* const* p, const bool* whole, T* dst, Index count,
                             bool streaming) {
  const auto x = operand<T>(p[0], whole[0]), y = operand<T>(p[1], whole[1]);
  const auto* mask = static_cast<const std::uint8_t*>(p[2]);
  fill(dst, count, streaming, [&](Index i, Index lanes) {
    Bytes bytes = Bytes{} + *mask;
    if (whole[2]) __builtin_memcpy(&bytes, mask + i, static_cast<std::size_t>(lanes));
    return __builtin_convertvector(bytes, Ints) != 0 ? x(i, lanes) : y(i, lanes);
  });
}

// Writes 1 where `holds(x, y)`, else 0.
template <typename T, typename Holds>
PYDLBENCH_INLINE void compare(const void* const* p, const bool* whole, void* to, Index count,
                              Holds&& holds) {
  const auto x = operand<T>(p[0], whole[0]), y = operand<T>(p[1], whole[1]);
  auto* dst = static_cast<std::uint8_t*>(to);
  for_vectors(count, [&](Index i, Index lanes) {
    const Ints held = holds(x(i, lanes), y(i, lanes));
    const Bytes bytes = __builtin_convertvector(held & 1, Bytes);
    __builtin_memcpy(dst + i, &bytes, static_cast<std::size_t>(lanes));
  });
}

// The next integer; the even one of two that are as near.
PYDLBENCH_INLINE Floats nearest_integer(Floats x) {
  const Words sign = (Words)x & 0x80000000U;
  const Floats size = (Floats)((Words)x ^ sign);
  // Adding 2^23 leaves no bits behind the point.
  const Floats rounded = (Floats)((Words)((size + 8388608.0f) - 8388608.0f) | sign);
  return size < 8388608.0f ? rounded : x;
}

PYDLBENCH_INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

template <typename T>
void arithmetic(Arithmetic op, const void* const* p, const bool* whole, void* to, Index n,
                float number, bool s) {
  using F = Floats;
  auto* dst = static_cast<T*>(to);
  const F zero = broadcast(0.0f), a = broadcast(number);
  switch (op) {
    case Arithmetic::abs:
      return map1<T>(p, whole, dst, n, s, [](F x) { return (F)((Words)x & 0x7fffffffU); });
    case Arithmetic::neg:
      return map1<T>(p, whole, dst, n, s, [](F x) { return -x; });
    case Arithmetic::square:
      return map1<T>(p, whole, dst, n, s, [](F x) { return x * x; });
    case Arithmetic::cube:
      return map1<T>(p, whole, dst, n, s, [](F x) { return x * x * x; });
    case Arithmetic::sqrt:
      return map1<T>(p, whole, dst, n, s, [](F x) { return root(x); });
    case Arithmetic::rsqrt:
      return map1<T>(p, whole, dst, n, s, [](F x) { return 1.0f / root(x); });
    case Arithmetic::rint:
      return map1<T>(p, whole, dst, n, s, [](F x) { return nearest_integer(x); });
    case Arithmetic::floor:
      return map1<T>(p, whole, dst, n, s, [](F x) {
        const F next = nearest_integer(x);
        return next > x ? next - 1.0f : next;
      });
    case Arithmetic::ceil:
      return map1<T>(p, whole, dst, n, s, [](F x) {
        const F next = nearest_integer(x);
        return next < x ? next + 1.0f : next;
      });
    case Arithmetic::sign:
      return map1<T>(p, whole, dst, n, s, [&](F x) {
        const F below = x < zero ? broadcast(-1.0f) : x;
        return x > zero ? broadcast(1.0f) : below;
      });
    case Arithmetic::xlogx:
      return map1<T>(p, whole, dst, n, s, [](F x) { return x * logarithm(x); });
    case Arithmetic::hardshrink:
      return map1<T>(p, whole, dst, n, s, [&](F x) {
        const F below = -x > a ? x : zero;
        return x > a ? x : below;
      });
    case Arithmetic::softshrink:
      return map1<T>(p, whole, dst, n, s, [&](F x) {
        const F below = -x > a ? x + a : zero;
        return x > a ? x - a : below;
      });
    case Arithmetic::add:
      return map2<T>(p, whole, dst, n, s, [&](F x, F y) { return x + a * y; });
    case Arithmetic::mul:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x * y; });
    case Arithmetic::div:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x / y; });
    case Arithmetic::max:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x > y ? x : y; });
    case Arithmetic::min:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x < y ? x : y; });
    case Arithmetic::leaky_relu:
      return map2<T>(p, whole, dst, n, s, [&](F x, F y) { return x > zero ? x : x * y; });
    case Arithmetic::glu:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x * sigmoid(y); });
    case Arithmetic::swiglu:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x * sigmoid(x) * y; });
    case Arithmetic::xlogy:
      return map2<T>(p, whole, dst, n, s, [](F x, F y) { return x * logarithm(y); });
    case Arithmetic::threshold:
      return map2<T>(p, whole, dst, n, s, [&](F x, F y) { return x > a ? x : y; });
    case Arithmetic::add_square:
      return map2<T>(p, whole, dst, n, s, [&](F x, F y) { return x + a * (y * y); });
    case Arithmetic::sum3:
      return map3<T>(p, whole, dst, n, s, [](F x, F y, F z) { return x + y + z; });
    case Arithmetic::lerp:
      return map3<T>(p, whole, dst, n, s, [](F x, F y, F z) { return x + z * (y - x); });
    case Arithmetic::addcmul:
      return map3<T>(p, whole, dst, n, s, [&](F x, F y, F z) { return x + a * (y * z); });
    case Arithmetic::addcdiv:
      return map3<T>(p, whole, dst, n, s, [&](F x, F y, F z) { return x + a * (y / z); });
    case Arithmetic::clamp:
      return map3<T>(p, whole, dst, n, s, [](F x, F y, F z) {
        x = x > y ? x : y;
        return x < z ? x : z;
      });
    case Arithmetic::leaky_relu_gradient:
      return map3<T>(p, whole, dst, n, s, [&](F x, F y, F z) { return y > zero ? x : x * z; });
    // With z the incoming gradient: of the gate y, and of the source x.
    case Arithmetic::glu_gradient:
      return map3<T>(p, whole, dst, n, s, [](F x, F y, F z) {
        const F share = sigmoid(y);
        return z * x * share * (1.0f - share);
      });
    case Arithmetic::swiglu_gradient:
      return map3<T>(p, whole, dst, n, s, [](F x, F y, F z) {
        const F share = sigmoid(x);
        return z * y * share * (1.0f + x * (1.0f - share));
      });
    case Arithmetic::select:
      return select<T>(p, whole, dst, n, s);
    case Arithmetic::eq:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x == y; });
    case Arithmetic::ne:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x != y; });
    case Arithmetic::lt:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x < y; });
    case Arithmetic::le:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x <= y; });
    case Arithmetic::gt:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x > y; });
    case Arithmetic::ge:
      return compare<T>(p, whole, to, n, [](F x, F y) { return x >= y; });
  }
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
