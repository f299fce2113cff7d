// Our own ReLU, addition and dropout.
#include <cmath>

#include "cpu/pointwise/draft.hpp"
#include "cpu/pointwise/team.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// A cache line of either type, so that no two threads write to one.
constexpr Index kGrain = 64;

void draft_dropout(Draft& draft) {
  const Image image = draft.image();
  const double keep = draft.number("keep");
  const double limit = std::floor(keep * 4294967296.0);  // of the hash, kept below
  // A limit of zero keeps nothing, a factor of zero neither.
  const Kept kept{static_cast<std::uint32_t>(std::max(limit, 1.0) - 1.0),
                  limit < 1.0 ? 0.0f : static_cast<float>(1.0 / keep)};
  const auto item = memory::data_type_size(draft.type);
  const char* from = draft.forward() ? "src" : "dst";
  const char* to = draft.forward() ? "dst" : "src";
  draft.add_streaming(
      "", {draft.map(from, Use::input), draft.map(to, Use::output)}, 0,
      [=](const Kernels& k, bool streaming) -> std::function<void(Pointers, void*)> {
        // The number of an element is that in N, C, H, W order. The loops of a layout in which
        // elements follow one another so do not stop at images.
        if (!image.channels_last || image.pixels == 1) {
          return [=, &k](Pointers p, void*) {
            on_threads(image.elements(), [&](Index thread, Index threads) {
              const Span span = share(image.elements(), kGrain, thread, threads);
              k.dropout(at(p[0], span.begin, item), at(p[1], span.begin, item), span.count(),
                        static_cast<std::uint64_t>(span.begin), 1, kept, streaming);
            });
          };
        }
        return [=, &k](Pointers p, void*) {
          on_threads(image.elements(), [&](Index thread, Index threads) {
            const Span span = share(image.batch * image.pixels, 1, thread, threads);
            for (Index place = span.begin; place < span.end; ++place) {
              const Index n = place / image.pixels, pixel = place % image.pixels;
              const Index number = n * image.channels * image.pixels + pixel;
              const Index first = place * image.channels;
              k.dropout(at(p[0], first, item), at(p[1], first, item), image.channels,
                        static_cast<std::uint64_t>(number),
                        static_cast<std::uint64_t>(image.pixels), kept, streaming);
            }
          });
        };
      });
}

}  // namespace

void draft_elementwise(Draft& draft) {
  if (draft.problem.op == "dropout") return draft_dropout(draft);
  const Index count = draft.image().elements();
  const auto item = memory::data_type_size(draft.type);
  // Adds loops that do not care for the order of elements.
  const auto add = [&](const std::vector<Argument>& arguments, auto run) {
    draft.add_streaming("", arguments, 0, [=](const Kernels& k, bool streaming) {
      return [=, &k](Pointers p, void*) {
        on_threads(count, [&](Index thread, Index threads) {
          const Span span = share(count, kGrain, thread, threads);
          run(
              k, [&](int tensor) { return at(p[tensor], span.begin, item); }, span.count(),
              streaming);
        });
      };
    });
  };
  if (draft.problem.op == "add") {
    add({draft.map("src", Use::input), draft.map("src2", Use::input),
         draft.map("dst", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.add(p(0), p(1), p(2), n, streaming);
        });
  } else if (draft.forward()) {
    add({draft.map("src", Use::input), draft.map("dst", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.relu(p(0), p(1), n, streaming);
        });
  } else {
    add({draft.map("src", Use::input), draft.map("dst", Use::input), draft.map("src", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.relu_gradient(p(0), p(1), p(2), n, streaming);
        });
  }
}

}  // namespace pydlbench::cpu::pointwise
