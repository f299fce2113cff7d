// Our own loops over weight tensors: L2 terms and the steps of optimizers.
#include "cpu/pointwise/draft.hpp"
#include "cpu/pointwise/team.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

constexpr Index kGrain = 64;
// Partial sums in float32 of so many elements, then in float64.
constexpr Index kBlock = 16384;

void draft_norm(Draft& draft) {
  const Index count = draft.problem.channels;
  const auto item = memory::data_type_size(draft.type);
  const auto bytes = static_cast<std::size_t>(team_size()) * 64;  // a cache line per thread
  draft.add_own("",
                {draft.vector("weights", Use::input, {count}, draft.type),
                 draft.vector("dst", Use::output, {1}, memory::data_type::f32)},
                bytes, [=](const Kernels& k) {
                  return [=, &k](Pointers p, void* workspace) {
                    auto* partial = static_cast<double*>(workspace);
                    on_threads(count, [&](Index thread, Index threads) {
                      const Span span = share(count, kGrain, thread, threads);
                      double sum = 0.0;
                      for (Index i = span.begin; i < span.end; i += kBlock) {
                        sum += k.sum_squares(at(p[0], i, item), std::min(kBlock, span.end - i));
                      }
                      partial[thread * 8] = sum;
                      wait_for_all();
                      if (thread > 0) return;
                      double all = 0.0;
                      for (Index t = 0; t < threads; ++t) all += partial[t * 8];
                      *static_cast<float*>(p[1]) = static_cast<float>(all / 2);
                    });
                  };
                });
}

}  // namespace

void draft_vectors(Draft& draft) {
  const auto& op = draft.problem.op;
  if (op == "l2" && draft.forward()) return draft_norm(draft);
  const Index count = draft.problem.channels;
  const auto item = memory::data_type_size(draft.type);
  const auto elements = [&](const char* role, Use use) {
    return draft.vector(role, use, {count}, draft.type);
  };
  if (op == "momentum") {
    const auto rate = static_cast<float>(draft.number("rate"));
    const auto mu = static_cast<float>(draft.number("mu"));
    draft.add_own("",
                  {elements("gradient", Use::input), elements("weights", Use::updated),
                   elements("velocity", Use::updated)},
                  0, [=](const Kernels& k) {
                    return [=, &k](Pointers p, void*) {
                      on_threads(count, [&](Index thread, Index threads) {
                        const Span span = share(count, kGrain, thread, threads);
                        k.momentum(at(p[1], span.begin, item), at(p[2], span.begin, item),
                                   at(p[0], span.begin, item), span.count(), rate, mu);
                      });
                    };
                  });
    return;
  }
  // Thousands of executions add thousands of small steps up, which no format overflows with.
  const bool sgd = op == "sgd";
  const auto factor = static_cast<float>(sgd ? -draft.number("rate") : draft.number("decay"));
  const char* from = sgd ? "gradient" : "weights";
  const char* to = sgd ? "weights" : "gradient";
  draft.add_own("", {elements(from, Use::input), elements(to, Use::updated)}, 0,
                [=](const Kernels& k) {
                  return [=, &k](Pointers p, void*) {
                    on_threads(count, [&](Index thread, Index threads) {
                      const Span span = share(count, kGrain, thread, threads);
                      k.add_scaled(at(p[1], span.begin, item), at(p[0], span.begin, item),
                                   span.count(), factor);
                    });
                  };
                });
}

}  // namespace pydlbench::cpu::pointwise
