// Sums, means, extremes and norms over dimensions: oneDNN's reduction, and loops of our own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu {

namespace {

using namespace pointwise;
using dnnl::algorithm;

constexpr std::pair<std::string_view, algorithm> kOps[] = {
    {"sum", algorithm::reduction_sum},
    {"mean", algorithm::reduction_mean},
    {"max", algorithm::reduction_max},
    {"min", algorithm::reduction_min},
    {"norm", algorithm::reduction_norm_lp_sum}};

// Number of elements of a partial sum in float32; partial sums are added in float64.
constexpr Index kBlock = 16384;
// Columns that a thread adds up at a time.
constexpr Index kColumns = 256;

// The sum that our loops compute: a sum times a factor, or the root of a sum of squares.
struct Sum {
  double factor = 1.0;
  bool squares = false;

  float result(double sum) const {
    return static_cast<float>(squares ? std::sqrt(sum) : sum * factor);
  }
};

// Sums over contiguous rows.
void with_row_sums(PlanBuilder& builder, const std::vector<Argument>& arguments, Index rows,
                   Index length, Sum how) {
  const auto item = memory::data_type_size(builder.type);
  builder.add_own("rows", arguments, 0, [=](const Kernels& k) {
    return [=, &k](Pointers p, void*) {
      on_threads(rows * length, [&](Index thread, Index threads) {
        const Span span = share(rows, 1, thread, threads);
        for (Index row = span.begin; row < span.end; ++row) {
          double sum = 0.0;
          for (Index i = 0; i < length; i += kBlock) {
            const auto* from = at(p[0], row * length + i, item);
            const Index count = std::min(kBlock, length - i);
            sum += how.squares ? k.sum_squares(from, count) : k.sum(from, count);
          }
          static_cast<float*>(p[1])[row] = how.result(sum);
        }
      });
    };
  });
}

// Sums over the middle one of three dimensions, by columns.
void with_column_sums(PlanBuilder& builder, const std::vector<Argument>& arguments, Index outer,
                      Index length, Index columns, Sum how) {
  const auto item = memory::data_type_size(builder.type);
  const Index pieces = (columns + kColumns - 1) / kColumns;
  builder.add_own("columns", arguments, 0, [=](const Kernels& k) {
    return [=, &k](Pointers p, void*) {
      on_threads(outer * length * columns, [&](Index thread, Index threads) {
        const Span span = share(outer * pieces, 1, thread, threads);
        for (Index one = span.begin; one < span.end; ++one) {
          const Index o = one / pieces, first = one % pieces * kColumns;
          const Index width = std::min(kColumns, columns - first);
          // Sums, followed by sums of squares.
          std::array<float, static_cast<std::size_t>(2 * kColumns + kMaxLanes)> sums{};
          constexpr std::array<float, static_cast<std::size_t>(kColumns + kMaxLanes)> zeros{};
          for (Index i = 0; i < length; ++i) {
            const auto* from = at(p[0], (o * length + i) * columns + first, item);
            if (how.squares) {
              k.moments_tile(from, width, width, zeros.data(), sums.data());
            } else {
              k.sum_tile(from, width, width, sums.data());
            }
          }
          const float* added = sums.data() + (how.squares ? width : 0);
          for (Index c = 0; c < width; ++c) {
            static_cast<float*>(p[1])[o * columns + first + c] = how.result(added[c]);
          }
        }
      });
    };
  });
}

// Adds our loops if all dimensions, the last one, or contiguous ones are reduced.
void with_loops(PlanBuilder& builder, const std::vector<Argument>& arguments,
                const memory::dims& src, const memory::dims& dst, std::string_view op) {
  Index outer = 1, length = 1, columns = 1;
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (dst[i] != src[i]) {
      if (columns > 1) return;
      length *= src[i];
    } else if (length == 1) {
      outer *= src[i];
    } else {
      columns *= src[i];
    }
  }
  const Sum how{op == "mean" ? 1.0 / static_cast<double>(length) : 1.0, op == "norm"};
  if (columns == 1) return with_row_sums(builder, arguments, outer, length, how);
  with_column_sums(builder, arguments, outer, length, columns, how);
}

std::vector<Candidate> reduction_candidates(const Fields& fields, Pass pass, Precision precision,
                                            bool thorough) {
  auto given = fields;
  PointwiseProblem named{};
  named.op = given.take<std::string>("op");
  const memory::dims from = given.take<std::vector<std::int64_t>>("src");
  const memory::dims to = given.take<std::vector<std::int64_t>>("dst");
  given.check_all_taken();
  PYDLBENCH_CHECK(from.size() == to.size() && !from.empty(), "as many dimensions");
  const auto* found = std::find_if(std::begin(kOps), std::end(kOps),
                                   [&](const auto& one) { return one.first == named.op; });
  if (found == std::end(kOps)) throw Unsupported("no reduction kernel named " + named.op);
  std::vector<Candidate> candidates;
  PlanBuilder builder{named,    pass,       supported_type("reduction", pass, precision),
                      thorough, candidates, "plain"};
  const auto src = builder.vector("src", Use::input, from, builder.type, DNNL_ARG_SRC);
  const auto dst = builder.vector("dst", Use::output, to, builder.type, DNNL_ARG_DST);
  with_onednn(named.op, [&] {
    for_each_implementation(
        dnnl::reduction::primitive_desc(cpu_engine(), found->second, src.desc, dst.desc, 2.0f, 0.0f,
                                        user_scratchpad(), true),
        [&](const auto& d) { builder.add_primitive("reduction", d, {src, dst}); });
  });
  const bool sums = named.op == "sum" || named.op == "mean" || named.op == "norm";
  if (sums && builder.type == memory::data_type::f32) {
    with_loops(builder, {src, dst}, from, to, named.op);
  }
  for (auto& one : candidates) one.layout = "plain";
  return candidates;
}

const Kind reduction("reduction", reduction_candidates);

}  // namespace

}  // namespace pydlbench::cpu
