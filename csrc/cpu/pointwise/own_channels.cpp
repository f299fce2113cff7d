// Our own bias and batch normalisation, with their gradients.
//
// Training and the gradient of batch normalisation compute sums per channel, and then process all
// elements a second time.
#include <cmath>
#include <functional>
#include <vector>

#include "cpu/pointwise/channels.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// Plans an affine map per channel (bias, or batch normalisation in inference) from the first
// argument to argument `target`, with the parameters `line(pointers, channel)`.
void plan_affine(PlanBuilder& builder, const std::vector<Argument>& arguments, int target,
                 const std::function<Affine(Pointers, Index)>& line) {
  const Image image = builder.image();
  const auto item = memory::data_type_size(builder.type);
  const Index period = tile_period(image.channels), room = padded_floats(period);
  const auto bytes =
      image.channels_last ? static_cast<std::size_t>(3 * room * thread_count()) * sizeof(float) : 0;
  builder.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
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

}  // namespace

void plan_bias(PlanBuilder& builder) {
  const Image image = builder.image();
  const auto item = memory::data_type_size(builder.type);
  const auto bias = [&](Use use) {
    return builder.vector("bias", use, {image.channels}, builder.type);
  };
  if (builder.forward()) {
    plan_affine(builder,
                {builder.map("src", Use::input), bias(Use::input), builder.map("dst", Use::output)},
                2, [=](Pointers p, Index c) { return Affine{0.0f, 1.0f, get(p[1], c, item)}; });
    return;
  }
  const ChannelSums sums(image, 1);
  builder.add_own(
      "", {builder.map("dst", Use::input), bias(Use::output)}, sums.bytes(), [=](const Kernels& k) {
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

namespace {

float inverse_deviation(float variance, float epsilon) {
  return 1.0f / std::sqrt(variance + epsilon);
}

struct Shape {
  Image image;
  std::size_t item;
  float epsilon, momentum;
  double count() const { return static_cast<double>(image.batch * image.pixels); }
};

// Tensors: src, weights, bias; dst, mean, variance, running_mean, running_variance.
struct Training {
  Shape shape;
  static constexpr int kTarget = 3, kParameters = 3;

  // Sums are of differences to the channel's first element, so that a large mean does not cancel
  // the digits of the variance.
  float reference(Pointers p, Index c) const {
    return get(p[0], c * (shape.image.channels_last ? 1 : shape.image.pixels), shape.item);
  }
  void sum(const Kernels& k, Pointers p, Index first, Index count, float from, float* sums) const {
    k.moments(at(p[0], first, shape.item), count, from, sums);
  }
  void sum_tile(const Kernels& k, Pointers p, Index first, Index count, Index period,
                const float* from, float* sums) const {
    k.moments_tile(at(p[0], first, shape.item), count, period, from, sums);
  }
  // Writes the statistics of a channel, and the parameters for its elements.
  void finish(Pointers p, Index c, double sum, double squares, float* parameters) const {
    const double n = shape.count(), shift = sum / n;
    const double mean = static_cast<double>(reference(p, c)) + shift;
    const double variance = std::max(squares / n - shift * shift, 0.0);
    const auto move = [&](int tensor, double to) {
      auto& running = static_cast<float*>(p[tensor])[c];
      running += shape.momentum * (static_cast<float>(to) - running);
    };
    static_cast<float*>(p[4])[c] = static_cast<float>(mean);
    static_cast<float*>(p[5])[c] = static_cast<float>(variance);
    move(6, mean);
    move(7, variance * n / std::max(1.0, n - 1.0));
    parameters[0] = static_cast<float>(mean);
    parameters[1] = static_cast<const float*>(p[1])[c] *
                    inverse_deviation(static_cast<float>(variance), shape.epsilon);
    parameters[2] = static_cast<const float*>(p[2])[c];
  }
  void apply(const Kernels& k, Pointers p, Index first, Index count, const float* q,
             bool streaming) const {
    k.affine(at(p[0], first, shape.item), at(p[kTarget], first, shape.item), count,
             {q[0], q[1], q[2]}, streaming);
  }
  void apply_tile(const Kernels& k, Pointers p, Index first, Index count, Index period,
                  const float* q, Index room, bool streaming) const {
    k.affine_tile(at(p[0], first, shape.item), at(p[kTarget], first, shape.item), count,
                  {period, q, q + room, q + 2 * room}, streaming);
  }
};

// Tensors: src, dst, weights, mean, variance; src, weights, bias.
struct Gradient {
  Shape shape;
  static constexpr int kTarget = 5, kParameters = 4;

  float reference(Pointers p, Index c) const { return static_cast<const float*>(p[3])[c]; }
  void sum(const Kernels& k, Pointers p, Index first, Index count, float from, float* sums) const {
    k.products(at(p[0], first, shape.item), at(p[1], first, shape.item), count, from, sums);
  }
  void sum_tile(const Kernels& k, Pointers p, Index first, Index count, Index period,
                const float* from, float* sums) const {
    k.products_tile(at(p[0], first, shape.item), at(p[1], first, shape.item), count, period, from,
                    sums);
  }
  void finish(Pointers p, Index c, double sum, double products, float* parameters) const {
    const float inverse = inverse_deviation(static_cast<const float*>(p[4])[c], shape.epsilon);
    const double of_weights = products * static_cast<double>(inverse);
    static_cast<float*>(p[6])[c] = static_cast<float>(of_weights);
    static_cast<float*>(p[7])[c] = static_cast<float>(sum);
    parameters[0] = reference(p, c);
    parameters[1] = static_cast<const float*>(p[2])[c] * inverse;
    parameters[2] = inverse * static_cast<float>(of_weights / shape.count());
    parameters[3] = static_cast<float>(sum / shape.count());
  }
  void apply(const Kernels& k, Pointers p, Index first, Index count, const float* q,
             bool streaming) const {
    k.gradient(at(p[0], first, shape.item), at(p[1], first, shape.item),
               at(p[kTarget], first, shape.item), count, {q[0], q[1], q[2], q[3]}, streaming);
  }
  void apply_tile(const Kernels& k, Pointers p, Index first, Index count, Index period,
                  const float* q, Index room, bool streaming) const {
    k.gradient_tile(at(p[0], first, shape.item), at(p[1], first, shape.item),
                    at(p[kTarget], first, shape.item), count,
                    {period, q, q + room, q + 2 * room, q + 3 * room}, streaming);
  }
};

// Computes all sums, then all elements; little of the data is still in the caches.
template <typename Step>
void add_two_rounds(PlanBuilder& builder, const std::vector<Argument>& arguments,
                    const Step& step) {
  const Image image = step.shape.image;
  const ChannelSums sums(image, 2);
  const Index period = tile_period(image.channels), room = padded_floats(period);
  const Index parameters =
      image.channels_last ? Step::kParameters * room : 4 * padded_floats(image.channels);
  const Index references = image.channels_last ? thread_count() * room : 0;
  const auto sum_floats = static_cast<Index>(sums.bytes() / sizeof(float));
  const auto bytes = static_cast<std::size_t>(sum_floats + parameters + references) * sizeof(float);
  builder.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void* workspace) {
      auto* q = static_cast<float*>(workspace) + sum_floats;
      on_threads(image.elements(), [&](Index thread, Index threads) {
        if (image.channels_last) {
          float* reference = q + parameters + thread * room;
          spread(image.channels, period, {0, image.channels}, reference,
                 [&](Index c) { return step.reference(p, c); });
          sums.tiles(thread, threads, workspace, [&](Index first, Index count, float* to) {
            step.sum_tile(k, p, first, count, period, reference, to);
          });
        } else {
          sums.rows(thread, threads, workspace,
                    [&](Index first, Index count, Index channel, float* to) {
                      step.sum(k, p, first, count, step.reference(p, channel), to);
                    });
        }
        wait_for_all();
        const Span span = share(image.channels, 16, thread, threads);
        for (Index c = span.begin; c < span.end; ++c) {
          float own[4];
          step.finish(p, c, sums.total(threads, workspace, c, 0),
                      sums.total(threads, workspace, c, 1), own);
          for (int i = 0; i < Step::kParameters; ++i) {
            if (image.channels_last) {
              spread(image.channels, period, {c, c + 1}, q + i * room,
                     [&](Index) { return own[i]; });
            } else {
              q[4 * c + i] = own[i];
            }
          }
        }
        wait_for_all();
        if (image.channels_last) {
          const Span all = pixel_elements(image, thread, threads);
          step.apply_tile(k, p, all.begin, all.count(), period, q, room, streaming);
        } else {
          for_planes(image, thread, threads, [&](Index first, Index count, Index channel) {
            step.apply(k, p, first, count, q + 4 * channel, streaming);
          });
        }
      });
    };
  });
}

// Computes sums and elements channel by channel: the second pass finds the data in nearer caches.
template <typename Step>
void add_by_channel(PlanBuilder& builder, const std::vector<Argument>& arguments,
                    const Step& step) {
  const Image image = step.shape.image;
  builder.add_streaming("by channel", arguments, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void*) {
      constexpr Index kMax = 65536;  // elements of a float32 sum
      on_threads(image.elements(), [&](Index thread, Index threads) {
        const Span span = share(image.channels, 1, thread, threads);
        for (Index c = span.begin; c < span.end; ++c) {
          double all[2] = {0.0, 0.0};
          const float reference = step.reference(p, c);
          for (Index n = 0; n < image.batch; ++n) {
            for (Index pixel = 0; pixel < image.pixels; pixel += kMax) {
              float now[2];
              step.sum(k, p, (n * image.channels + c) * image.pixels + pixel,
                       std::min(kMax, image.pixels - pixel), reference, now);
              all[0] += static_cast<double>(now[0]);
              all[1] += static_cast<double>(now[1]);
            }
          }
          float q[4];
          step.finish(p, c, all[0], all[1], q);
          for (Index n = 0; n < image.batch; ++n) {
            step.apply(k, p, (n * image.channels + c) * image.pixels, image.pixels, q, streaming);
          }
        }
      });
    };
  });
}

}  // namespace

void plan_batchnorm(PlanBuilder& builder) {
  const auto floats = [&](const char* role, Use use = Use::input) {
    return builder.channel_floats(role, use);
  };
  const auto epsilon = static_cast<float>(builder.number("epsilon"));
  const Shape shape{builder.image(), memory::data_type_size(builder.type), epsilon,
                    static_cast<float>(builder.number("momentum"))};
  const auto both = [&](const std::vector<Argument>& arguments, const auto& step) {
    add_two_rounds(builder, arguments, step);
    if (!shape.image.channels_last) add_by_channel(builder, arguments, step);
  };
  const auto src = builder.map("src", Use::input);
  if (builder.training()) {
    both({src, floats("weights"), floats("bias"), builder.map("dst", Use::output),
          floats("mean", Use::output), floats("variance", Use::output),
          floats("running_mean", Use::updated), floats("running_variance", Use::updated)},
         Training{shape});
  } else if (builder.forward()) {
    plan_affine(builder,
                {src, floats("weights"), floats("bias"), floats("mean"), floats("variance"),
                 builder.map("dst", Use::output)},
                5, [=](Pointers p, Index c) {
                  const auto value = [&](int i) { return static_cast<const float*>(p[i])[c]; };
                  return Affine{value(3), value(1) * inverse_deviation(value(4), epsilon),
                                value(2)};
                });
  } else {
    both({src, builder.map("dst", Use::input), floats("weights"), floats("mean"),
          floats("variance"), builder.map("src", Use::output), floats("weights", Use::output),
          floats("bias", Use::output)},
         Gradient{shape});
  }
}

}  // namespace pydlbench::cpu::pointwise
