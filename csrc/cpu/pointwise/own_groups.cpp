// Our own normalisation of groups of channels, and its gradient, of NCHW images: oneDNN has one
// from 3.3 on only.
//
// A group is contiguous: sums over it, or over each of its channels, come first; then all elements
// are processed a second time.
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
void forward(PlanBuilder& builder, const Groups& g) {
  std::vector<Argument> arguments{builder.map("src", Use::input), builder.map("dst", Use::output)};
  const bool training = builder.training();
  if (training) {
    arguments.push_back(statistics(builder, g, "mean", Use::output));
    arguments.push_back(statistics(builder, g, "variance", Use::output));
  }
  const std::size_t factors_at = arguments.size();
  if (g.factors) {
    arguments.push_back(builder.channel_floats("weights", Use::input));
    arguments.push_back(builder.channel_floats("bias", Use::input));
  }
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
  const bool contiguous = builder.tag == Tag::nchw;
  if (!contiguous) return;
  const Groups groups = groups_of(builder);
  return builder.forward() ? forward(builder, groups) : backward(builder, groups);
}

}  // namespace pydlbench::cpu::pointwise
