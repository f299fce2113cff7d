// Our own bias and its gradient, and a line per channel in general.
#include "cpu/pointwise/affine.hpp"
#include "cpu/pointwise/own_affine.hpp"

namespace pydlbench::cpu::pointwise {

void draft_affine(Draft& draft, const std::vector<Argument>& arguments, int target,
                  const std::function<Affine(Pointers, Index)>& line) {
  const Image image = draft.image();
  const auto item = memory::data_type_size(draft.type);
  const Index period = tile_period(image.channels), room = padded_floats(period);
  const auto bytes =
      image.channels_last ? static_cast<std::size_t>(3 * room * team_size()) * sizeof(float) : 0;
  draft.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void* workspace) {
      on_threads(image.elements(), [&](Index thread, Index threads) {
        if (!image.channels_last) {
          for_planes(image, thread, threads, [&](Index first, Index count, Index channel) {
            k.affine(at(p[0], first, item), at(p[target], first, item), count, line(p, channel),
                     streaming);
          });
          return;
        }
        float* mean = static_cast<float*>(workspace) + thread * 3 * room;
        float *scale = mean + room, *bias = scale + room;
        for (Index c = 0; c < image.channels; ++c) {
          const Affine one = line(p, c);
          for (Index place = c; place < period; place += image.channels) {
            mean[place] = one.mean;
            scale[place] = one.scale;
            bias[place] = one.bias;
          }
        }
        const Span span = pixel_elements(image, thread, threads);
        k.affine_tile(at(p[0], span.begin, item), at(p[target], span.begin, item), span.count(),
                      {period, mean, scale, bias}, streaming);
      });
    };
  });
}

void draft_bias(Draft& draft) {
  const Image image = draft.image();
  const auto item = memory::data_type_size(draft.type);
  const auto bias = [&](Use use) {
    return draft.vector("bias", use, {image.channels}, draft.type);
  };
  if (draft.forward()) {
    draft_affine(draft,
                 {draft.map("src", Use::input), bias(Use::input), draft.map("dst", Use::output)}, 2,
                 [=](Pointers p, Index c) { return Affine{0.0f, 1.0f, get(p[1], c, item)}; });
    return;
  }
  const ChannelSums sums(image, 1);
  draft.add_own(
      "", {draft.map("dst", Use::input), bias(Use::output)}, sums.bytes(), [=](const Kernels& k) {
        return [=, &k](Pointers p, void* workspace) {
          on_threads(image.elements(), [&](Index thread, Index threads) {
            if (image.channels_last) {
              const Index period = tile_period(image.channels);
              sums.tiles(thread, threads, workspace, [&](Index first, Index count, float* to) {
                k.sum_tile(at(p[0], first, item), count, period, to);
              });
            } else {
              sums.rows(thread, threads, workspace,
                        [&](Index first, Index count, Index, float* to) {
                          *to = k.sum(at(p[0], first, item), count);
                        });
            }
            wait_for_all();
            const Span span = share(image.channels, 64, thread, threads);
            for (Index c = span.begin; c < span.end; ++c) {
              put(p[1], c, item, static_cast<float>(sums.total(threads, workspace, c, 0)));
            }
          });
        };
      });
}

}  // namespace pydlbench::cpu::pointwise
