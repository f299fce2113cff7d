// Plans of ops with something per channel: bias and batch normalisation.
#include <string>

#include "cuda/pointwise/draft.hpp"

namespace pydlbench::cuda::pointwise {

namespace {

std::size_t partial_bytes(const Draft& draft, std::int64_t splits, std::int64_t sums) {
  if (splits == 1) return 0;
  return static_cast<std::size_t>(sums * splits * draft.problem.channels) * sizeof(float);
}

float* floats(void* pointer) { return static_cast<float*>(pointer); }

void draft_inference(Draft& draft, float epsilon) {
  const std::vector<TensorSpec> tensors{draft.map("src", Use::input),
                                        draft.channel_floats("weights", Use::input),
                                        draft.channel_floats("bias", Use::input),
                                        draft.channel_floats("mean", Use::input),
                                        draft.channel_floats("variance", Use::input),
                                        draft.map("dst", Use::output)};
  for (const auto& [tiling, name] : tilings(draft, draft.count(), 1, bytes_of(draft.type))) {
    draft.add(name, tensors, 0,
              [=, tiling = tiling, type = draft.type, image = draft.image()](
                  const Pointers& p, void*, CUstream_st* stream) {
                const BatchnormParameters parameters{floats(p[1]), floats(p[2]), floats(p[3]),
                                                     floats(p[4]), epsilon};
                batchnorm_apply(type, tiling, image, p[0], parameters, p[5], stream);
              });
  }
}

void draft_training(Draft& draft, float epsilon, float momentum) {
  const std::vector<TensorSpec> tensors{draft.map("src", Use::input),
                                        draft.channel_floats("weights", Use::input),
                                        draft.channel_floats("bias", Use::input),
                                        draft.map("dst", Use::output),
                                        draft.channel_floats("mean", Use::output),
                                        draft.channel_floats("variance", Use::output),
                                        draft.channel_floats("running_mean", Use::in_out),
                                        draft.channel_floats("running_variance", Use::in_out)};
  const auto parameters = [epsilon](const Pointers& p) {
    return BatchnormParameters{floats(p[1]), floats(p[2]), floats(p[4]), floats(p[5]), epsilon};
  };
  const auto statistics = [momentum](const Pointers& p) {
    return BatchnormStatistics{floats(p[4]), floats(p[5]), floats(p[6]), floats(p[7]), momentum};
  };
  const auto type = draft.type;
  const auto image = draft.image();
  if (!image.channels_last) {
    draft.add("one kernel, block per channel", tensors, 0,
              [=](const Pointers& p, void*, CUstream_st* stream) {
                batchnorm_forward_fused(type, image, p[0], parameters(p), statistics(p), p[3],
                                        stream);
              });
  }
  for (const auto splits : channel_splits(draft)) {
    for (const auto& [tiling, name] : tilings(draft, draft.count(), 1, bytes_of(type))) {
      draft.add(splits_name(splits) + ", " + name, tensors, partial_bytes(draft, splits, 2),
                [=, tiling = tiling](const Pointers& p, void* workspace, CUstream_st* stream) {
                  batchnorm_statistics(type, splits, image, p[0], statistics(p), floats(workspace),
                                       stream);
                  batchnorm_apply(type, tiling, image, p[0], parameters(p), p[3], stream);
                });
    }
  }
}

void draft_gradient(Draft& draft, float epsilon) {
  const std::vector<TensorSpec> tensors{draft.map("src", Use::input),
                                        draft.map("dst", Use::input),
                                        draft.channel_floats("weights", Use::input),
                                        draft.channel_floats("mean", Use::input),
                                        draft.channel_floats("variance", Use::input),
                                        draft.map("src", Use::output),
                                        draft.channel_floats("weights", Use::output),
                                        draft.channel_floats("bias", Use::output)};
  const auto parameters = [epsilon](const Pointers& p) {
    return BatchnormParameters{floats(p[2]), nullptr, floats(p[3]), floats(p[4]), epsilon};
  };
  const auto type = draft.type;
  const auto image = draft.image();
  if (!image.channels_last) {
    draft.add("one kernel, block per channel", tensors, 0,
              [=](const Pointers& p, void*, CUstream_st* stream) {
                batchnorm_backward_fused(type, image, p[0], p[1], parameters(p), floats(p[6]),
                                         floats(p[7]), p[5], stream);
              });
  }
  for (const auto splits : channel_splits(draft)) {
    for (const auto& [tiling, name] : tilings(draft, draft.count(), 2, bytes_of(type))) {
      draft.add(splits_name(splits) + ", " + name, tensors, partial_bytes(draft, splits, 2),
                [=, tiling = tiling](const Pointers& p, void* workspace, CUstream_st* stream) {
                  batchnorm_gradients(type, splits, image, p[0], p[1], parameters(p), floats(p[6]),
                                      floats(p[7]), floats(workspace), stream);
                  batchnorm_backward_apply(type, tiling, image, p[0], p[1], parameters(p),
                                           floats(p[6]), floats(p[7]), p[5], stream);
                });
    }
  }
}

}  // namespace

void draft_bias(Draft& draft) {
  const auto type = draft.type;
  const auto image = draft.image();
  if (draft.is_forward()) {
    for (const auto& [tiling, name] : tilings(draft, draft.count(), 1, bytes_of(type))) {
      draft.add(
          name,
          {draft.map("src", Use::input), draft.vector("bias", Use::input, image.channels, type),
           draft.map("dst", Use::output)},
          0, [=, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
            bias_forward(type, tiling, image, p[0], p[1], p[2], stream);
          });
    }
    return;
  }
  for (const auto splits : channel_splits(draft)) {
    draft.add(
        splits_name(splits),
        {draft.map("dst", Use::input), draft.vector("bias", Use::output, image.channels, type)},
        partial_bytes(draft, splits, 1),
        [=](const Pointers& p, void* workspace, CUstream_st* stream) {
          bias_backward(type, splits, image, p[0], p[1], floats(workspace), stream);
        });
  }
}

void draft_batchnorm(Draft& draft) {
  const auto epsilon = static_cast<float>(draft.parameters.take("epsilon"));
  const auto momentum = static_cast<float>(draft.parameters.take("momentum"));
  if (draft.pass == Pass::forward_inference) return draft_inference(draft, epsilon);
  if (draft.pass == Pass::forward_training) return draft_training(draft, epsilon, momentum);
  draft_gradient(draft, epsilon);
}

}  // namespace pydlbench::cuda::pointwise
