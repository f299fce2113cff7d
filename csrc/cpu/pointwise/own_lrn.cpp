// Our own local response normalisation.
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// Pixels, with all channels, in a thread's buffers: half of a small second-level cache, but rows
// long enough for the prefetcher.
Index pixels_at_a_time(const Image& image, Index half, int buffers) {
  constexpr Index kFloats = 128 * 1024 / 4, kMin = 32, kMax = 512;
  const Index fits = kFloats / (buffers * (image.channels + 2 * half)) / kMin * kMin;
  return std::min(image.pixels, std::clamp(fits, kMin, kMax));
}

}  // namespace

void plan_lrn(PlanBuilder& builder) {
  const Image image = builder.image();
  const auto size = static_cast<Index>(builder.number("local_size"));
  const Window window{
      size / 2, static_cast<float>(builder.number("alpha") / static_cast<double>(size)),
      static_cast<float>(builder.number("beta")), static_cast<float>(builder.number("k"))};
  const auto item = memory::data_type_size(builder.type);
  const bool forward = builder.forward();
  std::vector<Argument> arguments{builder.map("src", Use::input)};
  if (!forward) arguments.push_back(builder.map("dst", Use::input));
  arguments.push_back(builder.map(forward ? "dst" : "src", Use::output));

  const Index block =
      image.channels_last ? 1 : pixels_at_a_time(image, window.half, forward ? 1 : 3);
  const auto floats = lrn_buffer(image.channels, window.half, block);
  const auto bytes = static_cast<std::size_t>(thread_count()) * floats * sizeof(float);
  const Index blocks = (image.pixels + block - 1) / block;
  builder.add_own("", arguments, bytes, [=](const Kernels& k) {
    return [=, &k](Pointers p, void* workspace) {
      on_threads(image.elements(), [&](Index thread, Index threads) {
        auto* buffer = static_cast<float*>(workspace) + static_cast<std::size_t>(thread) * floats;
        const Span span = share(image.batch * blocks, 1, thread, threads);
        for (Index task = span.begin; task < span.end; ++task) {
          const Index n = task / blocks, pixel = task % blocks * block;
          const Index stride = image.channels_last ? 1 : image.pixels;
          const Index first = n * image.channels * image.pixels +
                              pixel * (image.channels_last ? image.channels : 1);
          const Index count = std::min(block, image.pixels - pixel);
          const void* x = at(p[0], first, item);
          if (forward && image.channels_last) {
            k.lrn_pixel(x, at(p[1], first, item), image.channels, window, buffer);
          } else if (forward) {
            k.lrn_planes(x, at(p[1], first, item), image.channels, stride, count, window, buffer);
          } else if (image.channels_last) {
            k.lrn_pixel_gradient(x, at(p[1], first, item), at(p[2], first, item), image.channels,
                                 window, buffer);
          } else {
            k.lrn_planes_gradient(x, at(p[1], first, item), at(p[2], first, item), image.channels,
                                  stride, count, window, buffer);
          }
        }
      });
    };
  });
}

}  // namespace pydlbench::cpu::pointwise
