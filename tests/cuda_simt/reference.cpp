// The float64 reference kernels, for test_reference.py.
#include <cstdint>
#include <vector>

#include "cuda/reference/conv2d.cuh"
#include "cuda/reference/gemm.cuh"
#include "cuda/reference/pool2d.cuh"
#include "cuda/reference/summary.hpp"

namespace {

using namespace pydlbench;
using namespace pydlbench::cuda;
using Int = std::int64_t;

struct Result {
  double max_error, got, expected;
  Int where[5], unwritten, infinite, elements, terms;
};

// The kernel's result in its own format and order.
struct Output {
  void* data;
  Int type, rank;
  Int dims[5], strides[5];
};

TensorSpec spec_of(const Output& output) {
  return {"result",
          static_cast<DataType>(output.type),
          {output.dims, output.dims + output.rank},
          {output.strides, output.strides + output.rank},
          Use::output};
}

template <typename Check>
void run(const Check& what, const TensorSpec& spec, Int terms, Int terms_per_launch,
         Result* result) {
  std::vector<Deviation> records(kRecords);
  reference::launch_check(what, records.data(), nullptr, terms_per_launch);
  const auto found = summary(records, spec, terms);
  *result = {found.max_error, found.got,      found.expected, {},
             found.unwritten, found.infinite, found.elements, found.terms};
  for (std::size_t i = 0; i < found.where.size(); ++i) result->where[i] = found.where[i];
}

}  // namespace

extern "C" void check_conv2d(int pass, const Int* p, int fused, const float* src,
                             const float* weights, const float* bias, const float* dst,
                             const Output* output, Int terms_per_launch, Result* result) {
  const Conv2dProblem problem{p[0], p[1],  p[2],  p[3],  p[4],  p[5],  p[6],  p[7],  p[8],
                              p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17]};
  const auto spec = spec_of(*output);
  const Conv2dCheck what{static_cast<Pass>(pass),    problem, fused != 0, src, weights, bias, dst,
                         view_of(spec, output->data)};
  run(what, spec, sum_terms(what.pass, problem, what.fused), terms_per_launch, result);
}

extern "C" void check_gemm(int pass, const Int* p, int fused, int bias_per_matrix, const float* src,
                           const float* weights, const float* bias, const float* dst,
                           const Output* output, Int terms_per_launch, Result* result) {
  const GemmProblem problem{p[0], p[1], p[2], p[3]};
  const auto spec = spec_of(*output);
  const GemmCheck what{static_cast<Pass>(pass),
                       problem,
                       fused != 0,
                       bias_per_matrix != 0,
                       src,
                       weights,
                       bias,
                       dst,
                       view_of(spec, output->data)};
  run(what, spec, sum_terms(what.pass, problem, what.fused), terms_per_launch, result);
}

extern "C" void check_pool2d(int pass, const Int* p, int mode, const float* src, const float* dst,
                             const Output* output, Int terms_per_launch, Result* result) {
  const Pool2dProblem problem{p[0],  p[1],  p[2],  p[3],  p[4],
                              p[5],  p[6],  p[7],  p[8],  p[9],
                              p[10], p[11], p[12], p[13], static_cast<PoolMode>(mode)};
  const auto spec = spec_of(*output);
  const Pool2dCheck what{static_cast<Pass>(pass), problem, src, dst, view_of(spec, output->data)};
  run(what, spec, sum_terms(what.pass, problem), terms_per_launch, result);
}
