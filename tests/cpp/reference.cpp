// The float64 reference kernels, for the tests in reference/.
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/reference/comparison.hpp"
#include "problem_from.hpp"

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
  check(what, records.data(), nullptr, terms_per_launch);
  const auto found = summary(records, spec, terms);
  *result = {found.max_error, found.got,      found.expected, {},
             found.unwritten, found.infinite, found.elements, found.terms};
  for (std::size_t i = 0; i < found.where.size(); ++i) result->where[i] = found.where[i];
}

}  // namespace

// The names of a problem's fields, in the order in which the functions here take their values: one
// or, for each of the sides, two.
extern "C" const char* problem_fields(const char* kind) {
  static std::string answer;
  const std::string wanted = kind;
  answer.clear();
  const auto list = [&](const char* name, auto problem) {
    using Problem = decltype(problem);
    if (wanted != name) return;
    for (const auto& field : Problem::fields) answer += std::string(field.name) + " ";
    for (const auto& field : Windows::side_fields) answer += std::string(field.name) + " ";
  };
  list("conv2d", ConvProblem{}), list("pool2d", PoolProblem{});
  return answer.c_str();
}

extern "C" void check_conv2d(int pass, const Int* p, int fused, const float* src,
                             const float* weights, const float* bias, const float* dst,
                             const Output* output, Int terms_per_launch, Result* result) {
  const auto problem = problem_from<ConvProblem>(p);
  const auto spec = spec_of(*output);
  const Conv2dCheck what{static_cast<Pass>(pass),    problem, fused != 0, src, weights, bias, dst,
                         view_of(spec, output->data)};
  run(what, spec, sum_terms(what.pass, problem, what.fused), terms_per_launch, result);
}

extern "C" void check_gemm(int pass, const Int* p, int fused, int bias_per_matrix, const float* src,
                           const float* weights, const float* bias, const float* dst,
                           const Output* output, Int terms_per_launch, Result* result) {
  const auto problem = gemm_problem(p[0], p[1], p[2], p[3]);
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
  auto problem = problem_from<PoolProblem>(p);
  problem.mode = static_cast<PoolMode>(mode);
  const auto spec = spec_of(*output);
  const Pool2dCheck what{static_cast<Pass>(pass), problem, src, dst, view_of(spec, output->data)};
  run(what, spec, sum_terms(what.pass, problem), terms_per_launch, result);
}
