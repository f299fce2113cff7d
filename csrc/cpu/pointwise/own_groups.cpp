// Our own normalisation of groups of channels, and its gradient (of NCHW images): oneDNN has one
// from 3.3 on only.
//
// Sums over a group, or over each of its channels, come first; then all elements are processed a
// second time. In NCHW images a group is contiguous.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/pointwise/channels.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

struct Groups {
  Index images, channels, per_group, pixels;
  std::size_t item;
  float epsilon;
  bool factors;  // whether there are weights and a bias

  Index planes() const { return images * channels; }
  Index rows() const { return planes() / per_group; }
  Index length() const { return per_group * pixels; }
  Index row_of(Index plane) const { return plane / per_group; }
};

Groups groups_of(const PlanBuilder& builder) {
  const auto& p = builder.problem;
  const auto groups = static_cast<Index>(builder.number("groups"));
  PYDLBENCH_CHECK(groups > 0 && p.channels % groups == 0, "groups divide the channels");
  return {p.batch,
          p.channels,
          p.channels / groups,
          p.height * p.width,
          memory::data_type_size(builder.type),
          static_cast<float>(builder.number("epsilon")),
          builder.number("factors") != 0.0};
}

Argument statistics(const PlanBuilder& builder, const Groups& g, const char* role, Use use) {
  return builder.vector(role, use, {g.images, g.rows() / g.images, 1, 1}, memory::data_type::f32);
}

// Tensors: src and dst, in training mean and variance, then weights and bias if there are any.
std::vector<Argument> forward_arguments(const PlanBuilder& builder, const Groups& g) {
  std::vector<Argument> arguments{builder.map("src", Use::input), builder.map("dst", Use::output)};
  if (builder.training()) {
    arguments.push_back(statistics(builder, g, "mean", Use::output));
    arguments.push_back(statistics(builder, g, "variance", Use::output));
  }
  if (g.factors) {
    arguments.push_back(builder.channel_floats("weights", Use::input));
    arguments.push_back(builder.channel_floats("bias", Use::input));
  }
  return arguments;
}

// NHWC. Each thread processes whole images, or all threads one image after the other if these are
// few. All threads of an image compute its parameters.
void forward_channels_last(PlanBuilder& builder, const Groups& g) {
  const bool training = builder.training();
  const std::size_t factors_at = training ? 4 : 2;
  const Image image{1, g.channels, g.pixels, true};
  const ChannelSums sums(image, 2);
  const Index period = tile_period(g.channels), room = padded_floats(period);
  const bool alone = g.images >= thread_count();
  const auto sum_floats = static_cast<Index>(sums.bytes() / sizeof(float));
  const auto bytes = static_cast<std::size_t>(thread_count() * (sum_floats + 4 * room));
  builder.add_streaming(
      "", forward_arguments(builder, g), bytes * sizeof(float),
      [=](const Kernels& k, bool streaming) {
        return [=, &k](Pointers p, void* workspace) {
          auto* floats = static_cast<float*>(workspace);
          on_threads(g.images * image.elements(), [&](Index own, Index all) {
            const Index thread = alone ? 0 : own, threads = alone ? 1 : all;
            auto* partial = floats + (alone ? own * sum_floats : 0);
            float* reference = floats + thread_count() * sum_floats + own * 4 * room;
            float *mean = reference + room, *scale = mean + room, *bias = scale + room;
            const Span images = alone ? share(g.images, 1, own, all) : Span{0, g.images};
            for (Index n = images.begin; n < images.end; ++n) {
              const void* src = at(p[0], n * image.elements(), g.item);
              const auto first = [&](Index group) { return get(src, group * g.per_group, g.item); };
              spread(g.channels, period, {0, g.channels}, reference,
                     [&](Index c) { return first(c / g.per_group); });
              sums.tiles(thread, threads, partial, [&](Index from, Index count, float* to) {
                k.moments_tile(at(src, from, g.item), count, period, reference, to);
              });
              if (!alone) wait_for_all();
              for (Index group = 0; group < g.channels / g.per_group; ++group) {
                const Span channels{group * g.per_group, (group + 1) * g.per_group};
                double shift = 0.0, square = 0.0;
                for (Index c = channels.begin; c < channels.end; ++c) {
                  shift += sums.total(threads, partial, c, 0) / static_cast<double>(g.length());
                  square += sums.total(threads, partial, c, 1) / static_cast<double>(g.length());
                }
                const double variance = std::max(square - shift * shift, 0.0);
                const auto middle = static_cast<float>(static_cast<double>(first(group)) + shift);
                const double inverse = 1.0 / std::sqrt(variance + double{g.epsilon});
                if (training && thread == 0) {
                  const Index row = n * (g.channels / g.per_group) + group;
                  static_cast<float*>(p[2])[row] = middle;
                  static_cast<float*>(p[3])[row] = static_cast<float>(variance);
                }
                const auto factor = [&](std::size_t i, Index c) {
                  return static_cast<const float*>(p[factors_at + i])[c];
                };
                spread(g.channels, period, channels, mean, [&](Index) { return middle; });
                spread(g.channels, period, channels, scale, [&](Index c) {
                  return static_cast<float>(inverse) * (g.factors ? factor(0, c) : 1.0f);
                });
                spread(g.channels, period, channels, bias,
                       [&](Index c) { return g.factors ? factor(1, c) : 0.0f; });
              }
              const Span span = pixel_elements(image, thread, threads);
              k.affine_tile(at(src, span.begin, g.item),
                            at(p[1], n * image.elements() + span.begin, g.item), span.count(),
                            {period, mean, scale, bias}, streaming);
              if (!alone) wait_for_all();
            }
          });
        };
      });
}

void forward(PlanBuilder& builder, const Groups& g) {
  const auto arguments = forward_arguments(builder, g);
  const bool training = builder.training();
  const std::size_t factors_at = training ? 4 : 2;
  const ChannelSums sums({1, g.rows(), g.length(), false}, 2);
  const Image planes{1, g.planes(), g.pixels, false};
  const auto bytes = sums.bytes() + static_cast<std::size_t>(2 * g.rows()) * sizeof(float);
  builder.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void* workspace) {
      auto* means = reinterpret_cast<float*>(static_cast<char*>(workspace) + sums.bytes());
      auto* inverses = means + g.rows();
      // Sums are of differences to the group's first element, so that a large mean does not cancel
      // the digits of the variance.
      const auto reference = [&](Index row) { return get(p[0], row * g.length(), g.item); };
      on_threads(planes.elements(), [&](Index thread, Index threads) {
        sums.rows(thread, threads, workspace, [&](Index first, Index count, Index row, float* to) {
          k.moments(at(p[0], first, g.item), count, reference(row), to);
        });
        wait_for_all();
        const Span span = share(g.rows(), 16, thread, threads);
        for (Index row = span.begin; row < span.end; ++row) {
          const auto n = static_cast<double>(g.length());
          const double shift = sums.total(threads, workspace, row, 0) / n;
          const double square = sums.total(threads, workspace, row, 1) / n;
          const double variance = std::max(square - shift * shift, 0.0);
          means[row] = static_cast<float>(static_cast<double>(reference(row)) + shift);
          inverses[row] = static_cast<float>(1.0 / std::sqrt(variance + double{g.epsilon}));
          if (!training) continue;
          static_cast<float*>(p[2])[row] = means[row];
          static_cast<float*>(p[3])[row] = static_cast<float>(variance);
        }
        wait_for_all();
        for_planes(planes, thread, threads, [&](Index first, Index count, Index plane) {
          const Index row = g.row_of(plane), channel = plane % g.channels;
          Affine one{means[row], inverses[row], 0.0f};
          if (g.factors) {
            one.scale *= static_cast<const float*>(p[factors_at])[channel];
            one.bias = static_cast<const float*>(p[factors_at + 1])[channel];
          }
          k.affine(at(p[0], first, g.item), at(p[1], first, g.item), count, one, streaming);
        });
      });
    };
  });
}

// Tensors: src, dst, mean, variance; src; weights, and the gradients of weights and bias. With d =
// x - mean and the inverse deviation r: dx = r (w dy - mean(w dy) - d r^2 mean(w dy d)).
void backward(PlanBuilder& builder, const Groups& g) {
  std::vector<Argument> arguments{builder.map("src", Use::input), builder.map("dst", Use::input),
                                  statistics(builder, g, "mean", Use::input),
                                  statistics(builder, g, "variance", Use::input),
                                  builder.map("src", Use::output)};
  if (g.factors) {
    arguments.push_back(builder.channel_floats("weights", Use::input));
    arguments.push_back(builder.channel_floats("weights", Use::output));
    arguments.push_back(builder.channel_floats("bias", Use::output));
  }
  const Image planes{1, g.planes(), g.pixels, false};
  const ChannelSums sums(planes, 2);
  const auto bytes = sums.bytes() + static_cast<std::size_t>(2 * g.rows()) * sizeof(float);
  builder.add_streaming("", arguments, bytes, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void* workspace) {
      auto* shifts = reinterpret_cast<float*>(static_cast<char*>(workspace) + sums.bytes());
      auto* slopes = shifts + g.rows();
      const auto weight_of = [&](Index plane) {
        return g.factors ? static_cast<const float*>(p[5])[plane % g.channels] : 1.0f;
      };
      const auto* means = static_cast<const float*>(p[2]);
      const auto inverse = [&](Index row) {
        return 1.0f / std::sqrt(static_cast<const float*>(p[3])[row] + g.epsilon);
      };
      on_threads(planes.elements(), [&](Index thread, Index threads) {
        sums.rows(thread, threads, workspace,
                  [&](Index first, Index count, Index plane, float* to) {
                    k.products(at(p[0], first, g.item), at(p[1], first, g.item), count,
                               means[g.row_of(plane)], to);
                  });
        wait_for_all();
        const auto total = [&](Index plane, int sum) {
          return sums.total(threads, workspace, plane, sum);
        };
        const Span rows = share(g.rows(), 1, thread, threads);
        for (Index row = rows.begin; row < rows.end; ++row) {
          double shift = 0.0, slope = 0.0;
          for (Index plane = row * g.per_group; plane < (row + 1) * g.per_group; ++plane) {
            const double weight = weight_of(plane);
            shift += weight * total(plane, 0);
            slope += weight * total(plane, 1);
          }
          const auto n = static_cast<double>(g.length());
          const double r = inverse(row);
          shifts[row] = static_cast<float>(shift / n);
          slopes[row] = static_cast<float>(slope / n * r * r);
        }
        const Span channels = share(g.factors ? g.channels : 0, 16, thread, threads);
        for (Index channel = channels.begin; channel < channels.end; ++channel) {
          double of_weight = 0.0, of_bias = 0.0;
          for (Index plane = channel; plane < g.planes(); plane += g.channels) {
            of_bias += total(plane, 0);
            of_weight += total(plane, 1) * double{inverse(g.row_of(plane))};
          }
          static_cast<float*>(p[6])[channel] = static_cast<float>(of_weight);
          static_cast<float*>(p[7])[channel] = static_cast<float>(of_bias);
        }
        wait_for_all();
        for_planes(planes, thread, threads, [&](Index first, Index count, Index plane) {
          const Index row = g.row_of(plane);
          const float weight = weight_of(plane), r = inverse(row);
          const void* x = at(p[0], first, g.item);
          void* dx = at(p[4], first, g.item);
          // The loop divides by the weight; its product with the gradient vanishes here.
          if (std::abs(weight) < 1e-20f) {
            k.affine(x, dx, count, {means[row], -r * slopes[row], -r * shifts[row]}, streaming);
            return;
          }
          k.gradient(x, at(p[1], first, g.item), dx, count,
                     {means[row], r * weight, slopes[row] / weight, shifts[row] / weight},
                     streaming);
        });
      });
    };
  });
}

}  // namespace

void plan_groupnorm(PlanBuilder& builder) {
  const Groups groups = groups_of(builder);
  if (builder.tag == Tag::nhwc) {
    if (builder.forward()) forward_channels_last(builder, groups);
    return;
  }
  return builder.forward() ? forward(builder, groups) : backward(builder, groups);
}

}  // namespace pydlbench::cpu::pointwise
