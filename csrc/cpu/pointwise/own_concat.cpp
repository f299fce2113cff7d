// Our own concatenation and its taking apart: copies of pieces.
#include "cpu/pointwise/draft.hpp"
#include "cpu/pointwise/team.hpp"

namespace pydlbench::cpu::pointwise {

void draft_concat(Draft& draft) {
  const Image image = draft.image();
  const bool forward = draft.forward();
  const auto& sources = draft.problem.sources;
  const auto item = memory::data_type_size(draft.type);
  // The joined tensor is rows, of images or of pixels, in each of which every source has a piece.
  const Index per_channel = image.channels_last ? 1 : image.pixels;
  const Index row = image.channels * per_channel;
  std::vector<Argument> parts;
  std::vector<Index> starts{0};  // of the pieces in a row
  for (std::size_t i = 0; i < sources.size(); ++i) {
    parts.push_back(draft.map(i == 0 ? "src" : "src" + std::to_string(i + 1),
                              forward ? Use::input : Use::output, kNoArgument, sources[i]));
    starts.push_back(starts.back() + sources[i] * per_channel);
  }
  PYDLBENCH_CHECK(starts.back() == row, "the sources have all channels");
  auto arguments = parts;
  const auto whole = draft.map("dst", forward ? Use::output : Use::input);
  arguments.insert(forward ? arguments.end() : arguments.begin(), whole);
  const std::size_t whole_at = forward ? parts.size() : 0, parts_at = forward ? 0 : 1;
  const Index elements = image.elements();
  draft.add_streaming("", arguments, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void*) {
      on_threads(elements, [&](Index thread, Index threads) {
        const Span span = share(elements, 64, thread, threads);
        for (Index from = span.begin; from < span.end;) {
          const Index image_or_pixel = from / row, within = from % row;
          std::size_t part = 0;
          while (within >= starts[part + 1]) ++part;
          const Index length = std::min(span.end - from, starts[part + 1] - within);
          const Index width = starts[part + 1] - starts[part];
          void* joined = at(p[whole_at], from, item);
          void* piece =
              at(p[parts_at + part], image_or_pixel * width + within - starts[part], item);
          k.copy(forward ? piece : joined, forward ? joined : piece, length, streaming);
          from += length;
        }
      });
    };
  });
}

}  // namespace pydlbench::cpu::pointwise
