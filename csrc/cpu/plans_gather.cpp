// Gather and scatter-add of table rows by our own loops; oneDNN has none.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu {

namespace {

using namespace pointwise;

void with_reads(PlanBuilder& builder, Index rows, Index width, Index count) {
  const auto item = memory::data_type_size(builder.type);
  builder.add_streaming("",
                        {builder.vector("src", Use::input, {rows, width}, builder.type),
                         builder.vector("indices", Use::input, {count}, memory::data_type::s32),
                         builder.vector("dst", Use::output, {count, width}, builder.type)},
                        0, [=](const Kernels& k, bool streaming) {
                          return [=, &k](Pointers p, void*) {
                            const auto* indices = static_cast<const std::int32_t*>(p[1]);
                            on_threads(count * width, [&](Index thread, Index threads) {
                              const Span span = share(count, 1, thread, threads);
                              for (Index i = span.begin; i < span.end; ++i) {
                                k.copy(at(p[0], indices[i] * width, item),
                                       at(p[2], i * width, item), width, streaming);
                              }
                            });
                          };
                        });
}

// Each thread processes some columns of all rows, so that no two threads add to the same element,
// and sums have the same order every time.
void with_sums(PlanBuilder& builder, Index rows, Index width, Index count) {
  if (builder.type != memory::data_type::f32) {
    throw Unsupported("gather: sums of rows are in fp32 only");
  }
  builder.add_own("",
                  {builder.vector("src", Use::input, {count, width}, builder.type),
                   builder.vector("indices", Use::input, {count}, memory::data_type::s32),
                   builder.vector("dst", Use::output, {rows, width}, builder.type)},
                  0, [=](const Kernels& k) {
                    return [=, &k](Pointers p, void*) {
                      const auto* indices = static_cast<const std::int32_t*>(p[1]);
                      const auto* src = static_cast<const float*>(p[0]);
                      auto* dst = static_cast<float*>(p[2]);
                      on_threads(rows * width, [&](Index thread, Index threads) {
                        const Span all = share(rows * width, 64, thread, threads);
                        std::fill(dst + all.begin, dst + all.end, 0.0f);
                        wait_for_all();
                        const Span span = share(width, 16, thread, threads);
                        if (span.count() == 0) return;
                        for (Index i = 0; i < count; ++i) {
                          k.add_scaled(dst + indices[i] * width + span.begin,
                                       src + i * width + span.begin, span.count(), 1.0f);
                        }
                      });
                    };
                  });
}

std::vector<Candidate> gather_candidates(const Fields& fields, Pass pass, Precision precision,
                                         bool thorough) {
  auto given = fields;
  PointwiseProblem named{};
  named.op = given.take<std::string>("op");
  const auto rows = given.take<std::int64_t>("rows");
  const auto width = given.take<std::int64_t>("width");
  const auto count = given.take<std::int64_t>("count");
  given.check_all_taken();
  std::vector<Candidate> candidates;
  PlanBuilder builder{named,    pass,       supported_type("gather", pass, precision),
                      thorough, candidates, "plain"};
  if (named.op == "rows") {
    with_reads(builder, rows, width, count);
  } else if (named.op == "add-rows") {
    with_sums(builder, rows, width, count);
  } else {
    throw Unsupported("no gather kernel named " + named.op);
  }
  return candidates;
}

const Kind gather("gather", gather_candidates);

}  // namespace

}  // namespace pydlbench::cpu
