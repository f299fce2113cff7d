// Pooling plans: layouts x implementations, maximum and average, forward and backward.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cpu/fused.hpp"
#include "cpu/images.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;

dnnl::algorithm algorithm(PoolMode mode) {
  switch (mode) {
    case PoolMode::max:
      return dnnl::algorithm::pooling_max;
    case PoolMode::avg_include_padding:
      return dnnl::algorithm::pooling_avg_include_padding;
    case PoolMode::avg_exclude_padding:
      return dnnl::algorithm::pooling_avg_exclude_padding;
  }
  throw Unsupported("unknown pooling mode");
}

bool has_windows_of_padding(const PoolProblem& p) {
  for (int i = 0; i < p.sides; ++i) {
    const auto window = (p.kernel[i] - 1) * p.dilation[i] + 1;
    if (std::max(p.pad_before[i], p.pad_after[i]) >= window) return true;
  }
  return false;
}

std::vector<Candidate> pool_candidates(const Fields& given, Pass pass, Precision precision,
                                       bool /*thorough*/) {
  auto fields = given;
  const FusedOps fused(fields, precision);
  const auto p = problem_of<PoolProblem>(fields);
  const std::string primitive = std::string("pooling ") + name_of(pass);
  if (pass == Pass::backward_weights) throw Unsupported("pooling has no weights");
  const auto src_dims = image_dims(p.batch, p.channels, p.in_size, p.sides);
  const auto dst_dims = image_dims(p.batch, p.channels, p.out_size, p.sides);
  const auto strides = side_sizes(p.stride, p.sides), kernel = side_sizes(p.kernel, p.sides);
  const auto pad_begin = side_sizes(p.pad_before, p.sides),
             pad_end = side_sizes(p.pad_after, p.sides);
  const auto dilates = dilations(p);
  const std::vector<std::string> letters(2, with_sides("nc", p.sides));

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto plain = image::channels_first.of(p.sides);
    const memory::desc plain_src(src_dims, memory::data_type::f32, plain);
    const memory::desc plain_dst(dst_dims, fused.plain_type(), plain);
    const FusedShape fused_shape{plain_dst, 1, 1, {p.channels}};
    const auto attributes = fused.attributes(fused_shape);
    auto& engine = cpu_engine();
    for (const auto& [variant, tag] : kImageLayouts) {
      const memory::desc src(src_dims, fused.types().src, tag.of(p.sides));
      const memory::desc dst(dst_dims, fused.types().dst, tag.of(p.sides));
      const auto kind = is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training;
      const dnnl::pooling_forward::primitive_desc forward(engine, kind, algorithm(p.mode), src, dst,
                                                          strides, kernel, dilates, pad_begin,
                                                          pad_end, attributes, true);
      const auto append = [&, v = variant](Candidate candidate) {
        candidate.primitive = primitive;
        candidate.variant = v;
        append_new(candidates, std::move(candidate), letters);
      };
      if (is_forward(pass)) {
        for_each_implementation(forward, [&](const auto& d) {
          Candidate candidate{};
          candidate.run = {d,
                           {{DNNL_ARG_SRC, "src", d.src_desc(), plain_src, false},
                            {DNNL_ARG_DST, "dst", d.dst_desc(), plain_dst, true}}};
          fused.append(d, fused_shape, candidate.run.arguments);
          append(std::move(candidate));
        });
        continue;
      }
      // The workspace's format depends on the forward implementation: pair each with its backward.
      for_each_implementation(forward, [&](const auto& f) {
        for_each_implementation(
            dnnl::pooling_backward::primitive_desc(engine, algorithm(p.mode), src, dst, strides,
                                                   kernel, dilates, pad_begin, pad_end, f,
                                                   attributes, true),
            [&](const auto& d) {
              Candidate candidate{};
              candidate.run = {d,
                               {{DNNL_ARG_DIFF_SRC, "src", d.diff_src_desc(), plain_src, true},
                                {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain_dst, false}}};
              if (p.mode == PoolMode::max) {
                candidate.forward =
                    Invocation{f,
                               {{DNNL_ARG_SRC, "src", f.src_desc(), plain_src, false},
                                {DNNL_ARG_DST, "dst", f.dst_desc(), plain_dst, true}}};
              }
              append(std::move(candidate));
            });
      });
    }
    if (candidates.empty() && has_windows_of_padding(p)) {
      throw Unsupported("oneDNN " + primitive + ": windows of nothing but padding");
    }
  });
}

const Kind pool("pool", pool_candidates);

}  // namespace

}  // namespace pydlbench::cpu
