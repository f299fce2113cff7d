// Plans of ops on rows: concatenation, softmax, and softmax with cross-entropy.
#include <cstddef>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "cuda/pointwise/plan_builder.hpp"

namespace pydlbench::cuda::pointwise {

void plan_concat(PlanBuilder& builder) {
  const auto& sources = builder.problem.sources;
  const auto image = builder.image();
  std::int64_t sum = 0;
  for (const auto source : sources) {
    PYDLBENCH_CHECK(source > 0, "every source has channels");
    sum += source;
  }
  PYDLBENCH_CHECK(sum == image.channels, "the sources' channels add up to the result's");

  const bool forward = builder.is_forward();
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string role = i == 0 ? "src" : "src" + std::to_string(i + 1);
    tensors.push_back(builder.map(role, forward ? Use::input : Use::output, sources[i]));
  }
  const auto joined = builder.map("dst", forward ? Use::output : Use::input);
  tensors.insert(forward ? tensors.end() : tensors.begin(), joined);

  const std::int64_t rows = image.channels_last ? image.batch * image.pixels() : image.batch;
  const std::int64_t wide = image.channels_last ? 1 : image.pixels();
  const auto bytes = static_cast<std::int64_t>(bytes_of(builder.type));
  std::vector<std::int64_t> row_bytes;
  for (const auto source : sources) row_bytes.push_back(source * wide * bytes);
  for (const auto& [tiling, name] : tilings(builder, 1)) {
    builder.add(name, tensors, 0,
                [=, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
                  std::vector<Piece> pieces;
                  const std::size_t first = forward ? 0 : 1;
                  for (std::size_t i = 0; i < row_bytes.size(); ++i) {
                    pieces.push_back({p[first + i], row_bytes[i]});
                  }
                  concat(forward ? Concat::join : Concat::split, tiling, rows, pieces,
                         forward ? p.back() : p.front(), stream);
                });
  }
}

void plan_row_softmax(PlanBuilder& builder) {
  // Along the last axis of NCHW, whatever the layout of the images around them.
  builder.channels_last = false;
  builder.variant = "plain";
  if (builder.parameters.take("axis") != 3.0) {
    throw Unsupported(builder.problem.op +
                      " along other than the last axis has no kernel on a GPU");
  }
  const auto image = builder.image();
  const auto rows = image.batch * image.channels * image.height, width = image.width;
  PYDLBENCH_CHECK(rows <= std::numeric_limits<std::int32_t>::max(), "that many rows");
  const auto type = builder.type;
  const bool logarithm = builder.problem.op == "log-softmax", forward = builder.is_forward();
  std::vector<TensorSpec> tensors{builder.map("src", Use::input), builder.map("dst", Use::output)};
  if (!forward) {
    tensors = {builder.map("result", Use::input), builder.map("dst", Use::input),
               builder.map("src", Use::output)};
  }
  for (const bool block : {false, true}) {
    builder.add(block ? "block per row" : "warp per row", tensors, 0,
                [=](const Pointers& p, void*, CUstream_st* stream) {
                  if (forward) {
                    row_softmax_forward(type, block, logarithm, rows, width, p[0], p[1], stream);
                  } else {
                    row_softmax_backward(type, block, logarithm, rows, width, p[0], p[1], p[2],
                                         stream);
                  }
                });
  }
}

void plan_softmax(PlanBuilder& builder) {
  const auto image = builder.image();
  PYDLBENCH_CHECK(image.pixels() == 1, "softmax-xent works on rows: height and width are 1");
  PYDLBENCH_CHECK(image.batch <= std::numeric_limits<std::int32_t>::max(), "that many rows");
  const auto rows = image.batch, classes = image.channels;
  const auto type = builder.type;
  const auto labels = builder.vector("labels", Use::input, rows, DataType::int32);
  if (builder.is_forward()) {
    const std::vector<TensorSpec> tensors{
        builder.map("src", Use::input), labels, builder.map("dst", Use::output),
        builder.vector("loss", Use::output, 1, DataType::float32)};
    for (const bool block : {false, true}) {
      builder.add(block ? "block per row" : "warp per row", tensors,
                  static_cast<std::size_t>(rows) * sizeof(float),
                  [=](const Pointers& p, void* workspace, CUstream_st* stream) {
                    softmax_forward(
                        type, block, rows, classes, p[0], static_cast<const std::int32_t*>(p[1]),
                        p[2], static_cast<float*>(p[3]), static_cast<float*>(workspace), stream);
                  });
    }
    return;
  }
  for (const auto& [tiling, name] : tilings(builder, 1)) {
    builder.add(name, {builder.map("dst", Use::input), labels, builder.map("src", Use::output)}, 0,
                [=, tiling = tiling](const Pointers& p, void*, CUstream_st* stream) {
                  softmax_backward(type, tiling, rows, classes, p[0],
                                   static_cast<const std::int32_t*>(p[1]), p[2], stream);
                });
  }
}

}  // namespace pydlbench::cuda::pointwise
