// Pooling plans: layouts x implementations, maximum and average, forward and backward.
#include <string>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

constexpr std::pair<const char*, Tag> kLayouts[] = {
    {"nhwc", Tag::nhwc}, {"nchw", Tag::nchw}, {"blocked", Tag::nChw16c}, {"blocked", Tag::nChw8c}};

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

std::vector<Candidate> pool2d_candidates(const Fields& fields, Pass pass, Precision precision,
                                         bool /*thorough*/) {
  const auto p = problem_of<Pool2dProblem>(fields);
  const std::string primitive = std::string("pooling ") + name_of(pass);
  if (pass == Pass::backward_weights) throw Unsupported("pooling has no weights");
  const auto type = data_type(precision);
  const memory::dims src_dims{p.batch, p.channels, p.in_height, p.in_width};
  const memory::dims dst_dims{p.batch, p.channels, p.out_height, p.out_width};
  const memory::dims strides{p.stride_height, p.stride_width};
  const memory::dims kernel{p.kernel_height, p.kernel_width};
  const memory::dims dilates{0, 0};
  const memory::dims pad_begin{p.pad_top, p.pad_left};
  const memory::dims pad_end{p.pad_bottom, p.pad_right};
  const std::vector<std::string> letters{"nchw", "nchw"};

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const memory::desc plain_src(src_dims, memory::data_type::f32, Tag::nchw);
    const memory::desc plain_dst(dst_dims, memory::data_type::f32, Tag::nchw);
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    for (const auto& [variant, tag] : kLayouts) {
      const memory::desc src(src_dims, type, tag);
      const memory::desc dst(dst_dims, type, tag);
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
          append(std::move(candidate));
        });
        continue;
      }
      // The workspace's format belongs to a forward implementation: each pairs with its own
      // backward.
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
  });
}

const Kind pool2d("pool2d", pool2d_candidates);

}  // namespace

}  // namespace pydlbench::cpu
