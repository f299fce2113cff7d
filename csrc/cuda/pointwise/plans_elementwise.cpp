// Plans of elementwise ops: ReLU, sums, dropout and optimizers.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/pointwise/plan_builder.hpp"

namespace pydlbench::cuda::pointwise {

namespace {

// Adds a plan per tiling; `run` starts one execution.
template <typename Run>
void add_tiled(PlanBuilder& builder, int inputs, const std::vector<TensorSpec>& tensors,
               const Run& run) {
  for (const auto& [tiling, name] : tilings(builder, inputs)) {
    builder.add(name, tensors, 0,
                [run, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
                  run(tiling, p, stream);
                });
  }
}

TensorSpec elements(const PlanBuilder& builder, const char* role, Use use) {
  return builder.vector(role, use, builder.problem.channels, builder.type);
}

void check_vector(const PlanBuilder& builder) {
  const auto& p = builder.problem;
  PYDLBENCH_CHECK(p.batch * p.height * p.width == 1,
                  p.op + " works on one dimension, given as channels");
}

}  // namespace

void plan_relu(PlanBuilder& builder) {
  const auto type = builder.type;
  const auto count = builder.count();
  if (builder.is_forward()) {
    add_tiled(builder, 1, {builder.map("src", Use::input), builder.map("dst", Use::output)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                relu_forward(type, tiling, count, p[0], p[1], stream);
              });
  } else {
    add_tiled(builder, 2,
              {builder.map("src", Use::input), builder.map("dst", Use::input),
               builder.map("src", Use::output)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                relu_backward(type, tiling, count, p[0], p[1], p[2], stream);
              });
  }
}

namespace {

struct NamedActivation {
  const char* op;
  Activation which;
};
constexpr NamedActivation kActivations[] = {
    {"relu6", Activation::clip},
    {"hardtanh", Activation::clip},
    {"hardsigmoid", Activation::hardsigmoid},
    {"hardswish", Activation::hardswish},
    {"sigmoid", Activation::sigmoid},
    {"tanh", Activation::tanh},
    {"softplus", Activation::softplus},
    {"elu", Activation::elu},
    {"silu", Activation::silu},
    {"mish", Activation::mish},
    {"gelu", Activation::gelu},
    {"gelu-tanh", Activation::gelu_tanh},
};

Activation activation_of(const std::string& op) {
  const auto* found = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& one) { return op == one.op; });
  PYDLBENCH_CHECK(found != std::end(kActivations), op + " is an activation");
  return found->which;
}

}  // namespace

void plan_activation(PlanBuilder& builder) {
  const auto which = activation_of(builder.problem.op);
  if (builder.problem.op == "elu") {
    const double alpha = builder.parameters.take("alpha"),
                 factor = builder.parameters.take("factor");
    if (alpha != 1.0 || factor != 1.0) throw Unsupported("elu has no factors on a GPU");
  }
  Bounds bounds{0.0f, 6.0f};
  if (builder.problem.op == "hardtanh") {
    bounds = {static_cast<float>(builder.parameters.take("low")),
              static_cast<float>(builder.parameters.take("high"))};
  }
  const auto type = builder.type;
  const auto count = builder.count();
  if (builder.is_forward()) {
    add_tiled(builder, 1, {builder.map("src", Use::input), builder.map("dst", Use::output)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                activation_forward(type, tiling, count, which, bounds, p[0], p[1], stream);
              });
  } else {
    add_tiled(builder, 2,
              {builder.map("src", Use::input), builder.map("dst", Use::input),
               builder.map("src", Use::output)},
              [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
                activation_backward(type, tiling, count, which, bounds, p[0], p[1], p[2], stream);
              });
  }
}

void plan_add(PlanBuilder& builder) {
  add_tiled(builder, 2,
            {builder.map("src", Use::input), builder.map("src2", Use::input),
             builder.map("dst", Use::output)},
            [type = builder.type, count = builder.count()](const Tiling& tiling, const Pointers& p,
                                                           CUstream_st* stream) {
              add_forward(type, tiling, count, p[0], p[1], p[2], stream);
            });
}

void plan_dropout(PlanBuilder& builder) {
  const double keep = builder.parameters.take("keep");
  PYDLBENCH_CHECK(keep > 0.0 && keep <= 1.0, "keep is a probability above zero");
  const bool forward = builder.is_forward();
  add_tiled(builder, 1,
            {builder.map(forward ? "src" : "dst", Use::input),
             builder.map(forward ? "dst" : "src", Use::output)},
            [keep, type = builder.type, image = builder.image()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              dropout(type, tiling, image, keep, p[0], p[1], stream);
            });
}

void plan_l2(PlanBuilder& builder) {
  check_vector(builder);
  const auto type = builder.type;
  const auto count = builder.count();
  const auto decay = static_cast<float>(builder.parameters.take("decay"));
  if (!builder.is_forward()) {
    add_tiled(
        builder, 2,
        {elements(builder, "weights", Use::input), elements(builder, "gradient", Use::in_out)},
        [=](const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
          l2_backward(type, tiling, count, decay, p[0], p[1], stream);
        });
    return;
  }
  const std::int64_t per_block = kThreads * 4 * (16 / static_cast<std::int64_t>(bytes_of(type)));
  const std::int64_t tiles = (count + per_block - 1) / per_block;
  std::int64_t before = 0;
  for (const std::int64_t waves : {8, 2}) {
    const auto blocks = std::min<std::int64_t>(tiles, waves * builder.target.multiprocessors);
    if (blocks == before) continue;
    before = blocks;
    builder.add(std::to_string(blocks) + " partial sums",
                {elements(builder, "weights", Use::input),
                 builder.vector("dst", Use::output, 1, DataType::float32)},
                static_cast<std::size_t>(blocks) * sizeof(float),
                [=](const Pointers& p, void* workspace, CUstream_st* stream) {
                  l2_forward(type, blocks, count, p[0], static_cast<float*>(p[1]),
                             static_cast<float*>(workspace), stream);
                });
  }
}

void plan_sgd(PlanBuilder& builder) {
  check_vector(builder);
  const auto rate = static_cast<float>(builder.parameters.take("rate"));
  add_tiled(builder, 2,
            {elements(builder, "gradient", Use::input), elements(builder, "weights", Use::in_out)},
            [rate, type = builder.type, count = builder.count()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              sgd(type, tiling, count, rate, p[0], p[1], stream);
            });
}

void plan_momentum(PlanBuilder& builder) {
  check_vector(builder);
  const auto rate = static_cast<float>(builder.parameters.take("rate"));
  const auto mu = static_cast<float>(builder.parameters.take("mu"));
  add_tiled(builder, 3,
            {elements(builder, "gradient", Use::input), elements(builder, "weights", Use::in_out),
             elements(builder, "velocity", Use::in_out)},
            [rate, mu, type = builder.type, count = builder.count()](
                const Tiling& tiling, const Pointers& p, CUstream_st* stream) {
              momentum(type, tiling, count, rate, mu, p[0], p[1], p[2], stream);
            });
}

}  // namespace pydlbench::cuda::pointwise
