// All loops of one instruction set; the including file defines PYDLBENCH_ISA.
#pragma once

#include "cpu/pointwise/isa/along.hpp"
#include "cpu/pointwise/isa/arithmetic.hpp"
#include "cpu/pointwise/isa/channels.hpp"
#include "cpu/pointwise/isa/elementwise.hpp"
#include "cpu/pointwise/isa/lrn.hpp"
#include "cpu/pointwise/isa/rmsnorm.hpp"
#include "cpu/pointwise/isa/softmax.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

template <typename T>
constexpr Kernels kTable{kLanes,
                         copy<T>,
                         relu<T>,
                         relu_gradient<T>,
                         add<T>,
                         dropout<T>,
                         sum_squares<T>,
                         add_scaled<T>,
                         momentum<T>,
                         affine<T>,
                         affine_tile<T>,
                         gradient<T>,
                         gradient_tile<T>,
                         moments<T>,
                         products<T>,
                         moments_tile<T>,
                         products_tile<T>,
                         sum<T>,
                         sum_tile<T>,
                         lrn_planes<T>,
                         lrn_planes_gradient<T>,
                         lrn_pixel<T>,
                         lrn_pixel_gradient<T>,
                         softmax<T>,
                         softmax_gradient<T>,
                         rmsnorm<T>,
                         rmsnorm_gradient<T>,
                         cumsum<T>,
                         cumsum_columns<T>,
                         extreme_row<T>,
                         extreme_columns<T>,
                         log_sum_exp_row<T>,
                         log_sum_exp_columns<T>,
                         arithmetic<T>};

}  // namespace

const Kernels& kernels(Storage storage) {
  return storage == Storage::float32 ? kTable<float> : kTable<Bfloat16>;
}

}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
