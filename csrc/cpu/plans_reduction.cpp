// Sums, means, extremes and norms over dimensions: oneDNN's reduction, and loops of our own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/channels.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu {

namespace {

using namespace pointwise;
using dnnl::algorithm;

constexpr std::pair<std::string_view, algorithm> kOps[] = {
    {"sum", algorithm::reduction_sum},  {"mean", algorithm::reduction_mean},
    {"max", algorithm::reduction_max},  {"min", algorithm::reduction_min},
    {"prod", algorithm::reduction_mul}, {"norm", algorithm::reduction_norm_lp_sum}};

// Of our loops only.
constexpr std::string_view kOwnOps[] = {"argmax", "argmin", "max-indices", "min-indices",
                                        "logsumexp"};

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

// A reduction of the middle one of three dimensions.
struct Middle {
  Index outer = 1, length = 1, columns = 1;
};

// Returns no dimensions unless the reduced ones are contiguous.
std::optional<Middle> middle_of(const memory::dims& src, const memory::dims& dst) {
  Middle m;
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (dst[i] != src[i]) {
      if (m.columns > 1) return {};
      m.length *= src[i];
    } else if (m.length == 1) {
      m.outer *= src[i];
    } else {
      m.columns *= src[i];
    }
  }
  return m;
}

void with_sums(PlanBuilder& builder, const std::vector<Argument>& arguments, const Middle& m,
               std::string_view op) {
  const Sum how{op == "mean" ? 1.0 / static_cast<double>(m.length) : 1.0, op == "norm"};
  if (m.columns == 1) return with_row_sums(builder, arguments, m.outer, m.length, how);
  with_column_sums(builder, arguments, m.outer, m.length, m.columns, how);
}

// Results of up to kMaxColumns columns, with room for a vector behind them.
struct Found {
  std::array<float, static_cast<std::size_t>(kMaxColumns + kMaxLanes)> values{};
  std::array<std::int32_t, static_cast<std::size_t>(kMaxColumns + kMaxLanes)> indices{};
};

// Calls `row(kernels, from, found)` or `columns(kernels, from, width, found)`, and copies what they
// find: values to the tensor `values_at`, and indices to `indices_at`, if these are not negative.
template <typename Row, typename Columns>
void with_found(PlanBuilder& builder, const std::vector<Argument>& arguments, const Middle& m,
                int values_at, int indices_at, Row row, Columns columns) {
  const auto item = memory::data_type_size(builder.type);
  const Index pieces = (m.columns + kMaxColumns - 1) / kMaxColumns;
  builder.add_own("", arguments, 0, [=](const Kernels& k) {
    return [=, &k](Pointers p, void*) {
      on_threads(m.outer * m.length * m.columns, [&](Index thread, Index threads) {
        const Span span = share(m.outer * pieces, 1, thread, threads);
        Found found;
        for (Index one = span.begin; one < span.end; ++one) {
          const Index o = one / pieces, first = one % pieces * kMaxColumns;
          const Index width = std::min(kMaxColumns, m.columns - first);
          const auto* from = at(p[0], o * m.length * m.columns + first, item);
          if (m.columns == 1) {
            row(k, from, found);
          } else {
            columns(k, from, width, found);
          }
          const Index to = o * m.columns + first;
          for (Index c = 0; values_at >= 0 && c < width; ++c) {
            put(p[values_at], to + c, item, found.values[static_cast<std::size_t>(c)]);
          }
          if (indices_at >= 0) {
            std::copy_n(found.indices.data(), width,
                        static_cast<std::int32_t*>(p[indices_at]) + to);
          }
        }
      });
    };
  });
}

void with_extremes(PlanBuilder& builder, const std::vector<Argument>& arguments, const Middle& m,
                   bool least, int values_at, int indices_at) {
  const float sign = least ? -1.0f : 1.0f;
  with_found(
      builder, arguments, m, values_at, indices_at,
      [=](const Kernels& k, const void* from, Found& found) {
        k.extreme_row(from, m.length, sign, found.values.data(), found.indices.data());
      },
      [=](const Kernels& k, const void* from, Index width, Found& found) {
        k.extreme_columns(from, m.length, m.columns, width, sign, found.values.data(),
                          found.indices.data());
      });
}

void with_log_sum_exp(PlanBuilder& builder, const std::vector<Argument>& arguments,
                      const Middle& m) {
  with_found(
      builder, arguments, m, 1, -1,
      [=](const Kernels& k, const void* from, Found& found) {
        found.values[0] = k.log_sum_exp_row(from, m.length);
      },
      [=](const Kernels& k, const void* from, Index width, Found& found) {
        k.log_sum_exp_columns(from, m.length, m.columns, width, found.values.data());
      });
}

// The reductions that oneDNN lacks, of contiguous dimensions.
void with_own_only(PlanBuilder& builder, const Argument& src, const Argument& dst,
                   const memory::dims& to, const Middle& m) {
  const auto& op = builder.problem.op;
  if (op == "logsumexp") return with_log_sum_exp(builder, {src, dst}, m);
  const auto indices = builder.vector("indices", Use::output, to, memory::data_type::s32);
  const bool least = op == "argmin" || op == "min-indices";
  if (op == "argmax" || op == "argmin") {
    return with_extremes(builder, {src, indices}, m, least, -1, 1);
  }
  with_extremes(builder, {src, dst, indices}, m, least, 1, 2);
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
  const bool is_own =
      std::find(std::begin(kOwnOps), std::end(kOwnOps), named.op) != std::end(kOwnOps);
  if (found == std::end(kOps) && !is_own) {
    throw Unsupported("no reduction kernel named " + named.op);
  }
  std::vector<Candidate> candidates;
  PlanBuilder builder{named,    pass,       supported_type("reduction", pass, precision),
                      thorough, candidates, "plain"};
  const auto src = builder.vector("src", Use::input, from, builder.type, DNNL_ARG_SRC);
  const auto dst = builder.vector("dst", Use::output, to, builder.type, DNNL_ARG_DST);
  const auto middle = middle_of(from, to);
  if (is_own) {
    if (!middle) {
      throw Unsupported(named.op + ": natively along adjacent dimensions only; nearest: a " +
                        "move:permute before it");
    }
    with_own_only(builder, src, dst, to, *middle);
    for (auto& one : candidates) one.layout = "plain";
    return candidates;
  }
  with_onednn(named.op, [&] {
    for_each_implementation(
        dnnl::reduction::primitive_desc(cpu_engine(), found->second, src.desc, dst.desc, 2.0f, 0.0f,
                                        user_scratchpad(), true),
        [&](const auto& d) { builder.add_primitive("reduction", d, {src, dst}); });
  });
  const bool sums = named.op == "sum" || named.op == "mean" || named.op == "norm";
  if (sums && middle && builder.type == memory::data_type::f32) {
    with_sums(builder, {src, dst}, *middle, named.op);
  }
  for (auto& one : candidates) one.layout = "plain";
  return candidates;
}

const Kind reduction("reduction", reduction_candidates);

}  // namespace

}  // namespace pydlbench::cpu
