// Our own product of images and a factor per channel, and both gradients.
#include <algorithm>

#include "cpu/pointwise/channels.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// A thread's buffers for contiguous channels: an image's factors, the zeros that are subtracted and
// added, and sums by index in the period.
struct Tile {
  Index channels, period, room;

  explicit Tile(Index of) : channels(of), period(tile_period(of)), room(padded_floats(period)) {}

  Index floats() const { return 2 * room + padded_floats(2 * period); }
};

// Tensors: multiplicand, factors, product; for the gradient also the source and the gradient of the
// factors.
struct Scale {
  Image image;
  std::size_t item;
  bool gradient, streaming;

  void planes(const Kernels& k, Pointers p, Span span) const {
    for (Index plane = span.begin; plane < span.end; ++plane) {
      const Index first = plane * image.pixels;
      k.affine(at(p[0], first, item), at(p[2], first, item), image.pixels,
               {0.0f, get(p[1], plane, item), 0.0f}, streaming);
      if (!gradient) continue;
      float sums[2] = {0.0f, 0.0f};
      k.products(at(p[3], first, item), at(p[0], first, item), image.pixels, 0.0f, sums);
      put(p[4], plane, item, sums[1]);
    }
  }

  void images(const Kernels& k, Pointers p, Span span, const Tile& tile, float* zeros) const {
    float *factors = zeros + tile.room, *sums = factors + tile.room;
    std::fill(zeros, zeros + tile.room, 0.0f);
    const Index count = image.channels * image.pixels;
    for (Index n = span.begin; n < span.end; ++n) {
      const Index first = n * count, row = n * image.channels;
      spread(image.channels, tile.period, {0, image.channels}, factors,
             [&](Index c) { return get(p[1], row + c, item); });
      k.affine_tile(at(p[0], first, item), at(p[2], first, item), count,
                    {tile.period, zeros, factors, zeros}, streaming);
      if (!gradient) continue;
      std::fill(sums, sums + 2 * tile.period, 0.0f);
      k.products_tile(at(p[3], first, item), at(p[0], first, item), count, tile.period, zeros,
                      sums);
      for (Index c = 0; c < image.channels; ++c) {
        double total = 0.0;
        for (Index place = c; place < tile.period; place += image.channels) {
          total += double{sums[tile.period + place]};
        }
        put(p[4], row + c, item, static_cast<float>(total));
      }
    }
  }
};

}  // namespace

void plan_scale(PlanBuilder& builder) {
  const Image image = builder.image();
  const auto factors = [&](Use use) {
    return builder.vector("src2", use, {image.batch, image.channels, 1, 1}, builder.type);
  };
  std::vector<Argument> arguments{builder.map(builder.forward() ? "src" : "dst", Use::input),
                                  factors(Use::input),
                                  builder.map(builder.forward() ? "dst" : "src", Use::output)};
  if (!builder.forward()) {
    arguments.push_back(builder.map("src", Use::input));
    arguments.push_back(factors(Use::output));
  }
  const Tile tile(image.channels);
  const auto bytes = image.channels_last
                         ? static_cast<std::size_t>(tile.floats() * thread_count()) * sizeof(float)
                         : 0;
  const bool gradient = !builder.forward();
  const auto item = memory::data_type_size(builder.type);
  builder.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
    const Scale scale{image, item, gradient, streaming};
    return [=, &k](Pointers p, void* workspace) {
      on_threads(image.elements(), [&](Index thread, Index threads) {
        if (image.channels_last) {
          scale.images(k, p, share(image.batch, 1, thread, threads), tile,
                       static_cast<float*>(workspace) + thread * tile.floats());
        } else {
          scale.planes(k, p, share(image.batch * image.channels, 1, thread, threads));
        }
      });
    };
  });
}

}  // namespace pydlbench::cpu::pointwise
