// Plans of ops that map elements to elements: ReLU, sums, dropout and optimizers.
#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/pointwise/draft.hpp"

namespace pydlbench::cuda::pointwise {

namespace {

// Adds a plan per tiling; `run` starts one execution.
template <typename Run>
void add_tiled(Draft& draft, int inputs, const std::vector<TensorSpec>& tensors, const Run& run) {
  for (const auto& [tiling, name] : tilings(draft, draft.count(), inputs, bytes_of(draft.type))) {
    draft.add(name, tensors, 0,
              [run, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
                run(tiling, p, stream);
              });
  }
}

TensorSpec elements(const Draft& draft, const char* role, Use use) {
  return draft.vector(role, use, draft.problem.channels, draft.type);
}

void check_vector(const Draft& draft) {
  const auto& p = draft.problem;
  PYDLBENCH_CHECK(p.batch * p.height * p.width == 1,
                  p.op + " works on one dimension, given as channels");
}

}  // namespace

void draft_relu(Draft& draft) {
  const auto type = draft.type;
  const auto count = draft.count();
  if (draft.is_forward()) {
    add_tiled(draft, 1, {draft.map("src", Use::input), draft.map("dst", Use::output)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                relu_forward(type, tiling, count, p[0], p[1], stream);
              });
  } else {
    add_tiled(
        draft, 2,
        {draft.map("src", Use::input), draft.map("dst", Use::input), draft.map("src", Use::output)},
        [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
          relu_backward(type, tiling, count, p[0], p[1], p[2], stream);
        });
  }
}

void draft_add(Draft& draft) {
  add_tiled(
      draft, 2,
      {draft.map("src", Use::input), draft.map("src2", Use::input), draft.map("dst", Use::output)},
      [type = draft.type, count = draft.count()](const Tiling& tiling, const Pointers& p,
                                                 CUstream_st* stream) {
        add_forward(type, tiling, count, p[0], p[1], p[2], stream);
      });
}

void draft_dropout(Draft& draft) {
  const double keep = draft.parameters.take("keep");
  PYDLBENCH_CHECK(keep > 0.0 && keep <= 1.0, "keep is a probability above zero");
  const bool forward = draft.is_forward();
  add_tiled(draft, 1,
            {draft.map(forward ? "src" : "dst", Use::input),
             draft.map(forward ? "dst" : "src", Use::output)},
            [keep, type = draft.type, image = draft.image()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              dropout(type, tiling, image, keep, p[0], p[1], stream);
            });
}

void draft_l2(Draft& draft) {
  check_vector(draft);
  const auto type = draft.type;
  const auto count = draft.count();
  const auto decay = static_cast<float>(draft.parameters.take("decay"));
  if (!draft.is_forward()) {
    add_tiled(draft, 2,
              {elements(draft, "weights", Use::input), elements(draft, "gradient", Use::in_out)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                l2_backward(type, tiling, count, decay, p[0], p[1], stream);
              });
    return;
  }
  const std::int64_t per_block = kThreads * 4 * (16 / static_cast<std::int64_t>(bytes_of(type)));
  const std::int64_t tiles = (count + per_block - 1) / per_block;
  std::int64_t before = 0;
  for (const std::int64_t waves : {8, 2}) {
    const auto blocks = std::min<std::int64_t>(tiles, waves * draft.target.multiprocessors);
    if (blocks == before) continue;
    before = blocks;
    draft.add(std::to_string(blocks) + " partial sums",
              {elements(draft, "weights", Use::input),
               draft.vector("dst", Use::output, 1, DataType::float32)},
              static_cast<std::size_t>(blocks) * sizeof(float),
              [=](const Pointers& p, void* workspace, CUstream_st* stream) {
                l2_forward(type, blocks, count, p[0], static_cast<float*>(p[1]),
                           static_cast<float*>(workspace), stream);
              });
  }
}

void draft_sgd(Draft& draft) {
  check_vector(draft);
  const auto rate = static_cast<float>(draft.parameters.take("rate"));
  add_tiled(draft, 2,
            {elements(draft, "gradient", Use::input), elements(draft, "weights", Use::in_out)},
            [rate, type = draft.type, count = draft.count()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              sgd(type, tiling, count, rate, p[0], p[1], stream);
            });
}

void draft_momentum(Draft& draft) {
  check_vector(draft);
  const auto rate = static_cast<float>(draft.parameters.take("rate"));
  const auto mu = static_cast<float>(draft.parameters.take("mu"));
  add_tiled(draft, 3,
            {elements(draft, "gradient", Use::input), elements(draft, "weights", Use::in_out),
             elements(draft, "velocity", Use::in_out)},
            [rate, mu, type = draft.type, count = draft.count()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              momentum(type, tiling, count, rate, mu, p[0], p[1], p[2], stream);
            });
}

}  // namespace pydlbench::cuda::pointwise
