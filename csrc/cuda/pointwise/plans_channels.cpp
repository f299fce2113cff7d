// Plans of ops on channels: bias, batch normalisation and local response normalisation.
#include <string>

#include "core/error.hpp"
#include "cuda/pointwise/plan_builder.hpp"

namespace pydlbench::cuda::pointwise {

namespace {

std::size_t partial_bytes(const PlanBuilder& builder, std::int64_t splits, std::int64_t sums) {
  if (splits == 1) return 0;
  return static_cast<std::size_t>(sums * splits * builder.problem.channels) * sizeof(float);
}

float* floats(void* pointer) { return static_cast<float*>(pointer); }

void plan_inference(PlanBuilder& builder, float epsilon) {
  const std::vector<TensorSpec> tensors{builder.map("src", Use::input),
                                        builder.channel_floats("weights", Use::input),
                                        builder.channel_floats("bias", Use::input),
                                        builder.channel_floats("mean", Use::input),
                                        builder.channel_floats("variance", Use::input),
                                        builder.map("dst", Use::output)};
  const auto [tiling, name] = one_tiling(builder, 1);
  builder.add(name, tensors, 0,
              [=, tiling = tiling, type = builder.type, image = builder.image()](
                  const Pointers& p, void*, CUstream_st* stream) {
                const BatchnormParameters parameters{floats(p[1]), floats(p[2]), floats(p[3]),
                                                     floats(p[4]), epsilon};
                batchnorm_apply(type, tiling, image, p[0], parameters, p[5], stream);
              });
}

void plan_training(PlanBuilder& builder, float epsilon, float momentum) {
  const std::vector<TensorSpec> tensors{builder.map("src", Use::input),
                                        builder.channel_floats("weights", Use::input),
                                        builder.channel_floats("bias", Use::input),
                                        builder.map("dst", Use::output),
                                        builder.channel_floats("mean", Use::output),
                                        builder.channel_floats("variance", Use::output),
                                        builder.channel_floats("running_mean", Use::in_out),
                                        builder.channel_floats("running_variance", Use::in_out)};
  const auto parameters = [epsilon](const Pointers& p) {
    return BatchnormParameters{floats(p[1]), floats(p[2]), floats(p[4]), floats(p[5]), epsilon};
  };
  const auto statistics = [momentum](const Pointers& p) {
    return BatchnormStatistics{floats(p[4]), floats(p[5]), floats(p[6]), floats(p[7]), momentum};
  };
  const auto type = builder.type;
  const auto image = builder.image();
  const auto splits = channel_splits(builder);
  const auto tiling = one_tiling(builder, 1).tiling;
  builder.add(splits_name(splits), tensors, partial_bytes(builder, splits, 2),
              [=](const Pointers& p, void* workspace, CUstream_st* stream) {
                batchnorm_statistics(type, splits, image, p[0], statistics(p), floats(workspace),
                                     stream);
                batchnorm_apply(type, tiling, image, p[0], parameters(p), p[3], stream);
              });
}

void plan_gradient(PlanBuilder& builder, float epsilon) {
  const std::vector<TensorSpec> tensors{builder.map("src", Use::input),
                                        builder.map("dst", Use::input),
                                        builder.channel_floats("weights", Use::input),
                                        builder.channel_floats("mean", Use::input),
                                        builder.channel_floats("variance", Use::input),
                                        builder.map("src", Use::output),
                                        builder.channel_floats("weights", Use::output),
                                        builder.channel_floats("bias", Use::output)};
  const auto parameters = [epsilon](const Pointers& p) {
    return BatchnormParameters{floats(p[2]), nullptr, floats(p[3]), floats(p[4]), epsilon};
  };
  const auto type = builder.type;
  const auto image = builder.image();
  const auto splits = channel_splits(builder);
  const auto tiling = one_tiling(builder, 2).tiling;
  builder.add(splits_name(splits), tensors, partial_bytes(builder, splits, 2),
              [=](const Pointers& p, void* workspace, CUstream_st* stream) {
                batchnorm_gradients(type, splits, image, p[0], p[1], parameters(p), floats(p[6]),
                                    floats(p[7]), floats(workspace), stream);
                batchnorm_backward_apply(type, tiling, image, p[0], p[1], parameters(p),
                                         floats(p[6]), floats(p[7]), p[5], stream);
              });
}

}  // namespace

void plan_bias(PlanBuilder& builder) {
  const auto type = builder.type;
  const auto image = builder.image();
  if (builder.is_forward()) {
    for (const auto& [tiling, name] : tilings(builder, 1)) {
      builder.add(
          name,
          {builder.map("src", Use::input), builder.vector("bias", Use::input, image.channels, type),
           builder.map("dst", Use::output)},
          0, [=, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
            bias_forward(type, tiling, image, p[0], p[1], p[2], stream);
          });
    }
    return;
  }
  const auto splits = channel_splits(builder);
  builder.add(
      splits_name(splits),
      {builder.map("dst", Use::input), builder.vector("bias", Use::output, image.channels, type)},
      partial_bytes(builder, splits, 1),
      [=](const Pointers& p, void* workspace, CUstream_st* stream) {
        bias_backward(type, splits, image, p[0], p[1], floats(workspace), stream);
      });
}

void plan_batchnorm(PlanBuilder& builder) {
  const auto epsilon = static_cast<float>(builder.parameters.take("epsilon"));
  const auto momentum = static_cast<float>(builder.parameters.take("momentum"));
  if (builder.pass == Pass::forward_inference) return plan_inference(builder, epsilon);
  if (builder.pass == Pass::forward_training) return plan_training(builder, epsilon, momentum);
  plan_gradient(builder, epsilon);
}

void plan_lrn(PlanBuilder& builder) {
  const double size = builder.parameters.take("local_size");
  PYDLBENCH_CHECK(
      size >= 1 && size < 1e9 && static_cast<int>(size) % 2 == 1 && size == static_cast<int>(size),
      "local_size is an odd number");
  const LrnParameters parameters{static_cast<int>(size),
                                 static_cast<float>(builder.parameters.take("alpha")),
                                 static_cast<float>(builder.parameters.take("beta")),
                                 static_cast<float>(builder.parameters.take("k"))};
  const auto type = builder.type;
  const auto image = builder.image();
  if (image.channels > kLrnChannels) {
    throw Unsupported("lrn of more than " + std::to_string(kLrnChannels) + " channels on a GPU");
  }
  const bool forward = builder.is_forward();
  std::vector<TensorSpec> tensors{builder.map("src", Use::input)};
  if (!forward) tensors.push_back(builder.map("dst", Use::input));
  tensors.push_back(builder.map(forward ? "dst" : "src", Use::output));

  builder.add("pixels in shared memory", tensors, 0,
              [=](const Pointers& p, void*, CUstream_st* stream) {
                if (forward) {
                  lrn_forward(type, image, parameters, p[0], p[1], stream);
                } else {
                  lrn_backward(type, image, parameters, p[0], p[1], p[2], stream);
                }
              });
}

}  // namespace pydlbench::cuda::pointwise
