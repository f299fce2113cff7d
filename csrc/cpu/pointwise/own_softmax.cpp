// Our own softmax with cross entropy.
#include "cpu/pointwise/draft.hpp"
#include "cpu/pointwise/team.hpp"

namespace pydlbench::cpu::pointwise {

void draft_softmax(Draft& draft) {
  const Index rows = draft.problem.batch, classes = draft.problem.channels;
  const auto item = memory::data_type_size(draft.type);
  const auto labels = draft.vector("labels", Use::input, {rows}, memory::data_type::s32);
  if (!draft.forward()) {
    const float scale = 1.0f / static_cast<float>(rows);
    draft.add_own("", {draft.map("dst", Use::input), labels, draft.map("src", Use::output)}, 0,
                  [=](const Kernels& k) {
                    return [=, &k](Pointers p, void*) {
                      on_threads(rows * classes, [&](Index thread, Index threads) {
                        const Span span = share(rows, 1, thread, threads);
                        for (Index n = span.begin; n < span.end; ++n) {
                          k.softmax_gradient(at(p[0], n * classes, item),
                                             at(p[2], n * classes, item), classes,
                                             static_cast<const std::int32_t*>(p[1])[n], scale);
                        }
                      });
                    };
                  });
    return;
  }
  // A loss per row, then exponentials of one row per thread, on cache lines of their own.
  const Index lossy = (rows + 15) / 16 * 16, line = (classes + 31) / 16 * 16;
  const auto bytes = static_cast<std::size_t>(lossy + team_size() * line) * sizeof(float);
  draft.add_own(
      "",
      {draft.map("src", Use::input), labels, draft.map("dst", Use::output),
       draft.vector("loss", Use::output, {1}, memory::data_type::f32)},
      bytes, [=](const Kernels& k) {
        return [=, &k](Pointers p, void* workspace) {
          auto* losses = static_cast<float*>(workspace);
          on_threads(rows * classes, [&](Index thread, Index threads) {
            float* buffer = losses + lossy + thread * line;
            const Span span = share(rows, 1, thread, threads);
            for (Index n = span.begin; n < span.end; ++n) {
              losses[n] = k.softmax(at(p[0], n * classes, item), at(p[2], n * classes, item),
                                    classes, static_cast<const std::int32_t*>(p[1])[n], buffer);
            }
            wait_for_all();
            if (thread > 0) return;
            double sum = 0.0;
            for (Index n = 0; n < rows; ++n) sum += losses[n];
            *static_cast<float*>(p[3]) = static_cast<float>(sum / static_cast<double>(rows));
          });
        };
      });
}

}  // namespace pydlbench::cpu::pointwise
