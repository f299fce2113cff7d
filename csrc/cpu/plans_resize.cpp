// Plans for images in another size: oneDNN's resampling, layouts x implementations.
#include <string>
#include <utility>
#include <vector>

#include "cpu/images.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

struct ResizeProblem {
  std::int64_t batch, channels, in_height, in_width, out_height, out_width;
  static constexpr Field<ResizeProblem> fields[] = {
      {"batch", &ResizeProblem::batch},           {"channels", &ResizeProblem::channels},
      {"in_height", &ResizeProblem::in_height},   {"in_width", &ResizeProblem::in_width},
      {"out_height", &ResizeProblem::out_height}, {"out_width", &ResizeProblem::out_width},
  };
};

dnnl::algorithm algorithm(const std::string& mode) {
  if (mode == "nearest") return dnnl::algorithm::resampling_nearest;
  if (mode == "linear") return dnnl::algorithm::resampling_linear;
  throw Unsupported("no resize kernel named " + mode);
}

std::vector<Candidate> resize_candidates(const Fields& fields, Pass pass, Precision precision,
                                         bool /*thorough*/) {
  auto given = fields;
  const auto how = algorithm(given.take<std::string>("mode"));
  const auto p = problem_of<ResizeProblem>(given);
  const std::string primitive = std::string("resampling ") + name_of(pass);
  if (pass == Pass::backward_weights) throw Unsupported("resize has no weights");
  const auto type = data_type(precision);
  const memory::dims src_dims{p.batch, p.channels, p.in_height, p.in_width};
  const memory::dims dst_dims{p.batch, p.channels, p.out_height, p.out_width};

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const memory::desc plain_src(src_dims, memory::data_type::f32, Tag::nchw);
    const memory::desc plain_dst(dst_dims, memory::data_type::f32, Tag::nchw);
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    for (const auto& [variant, tag] : kImageLayouts) {
      const memory::desc src(src_dims, type, tag.of(2));
      const memory::desc dst(dst_dims, type, tag.of(2));
      const auto append = [&, v = variant](const dnnl::primitive_desc_base& d,
                                           std::vector<Argument> arguments) {
        Candidate candidate{};
        candidate.primitive = primitive;
        candidate.variant = v;
        candidate.run = {d, std::move(arguments)};
        append_new(candidates, std::move(candidate), {"nchw", "nchw"});
      };
      const auto kind = is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training;
      const dnnl::resampling_forward::primitive_desc forward(engine, kind, how, src, dst,
                                                             attributes, true);
      if (is_forward(pass)) {
        for_each_implementation(forward, [&](const auto& d) {
          append(d, {{DNNL_ARG_SRC, "src", d.src_desc(), plain_src, false},
                     {DNNL_ARG_DST, "dst", d.dst_desc(), plain_dst, true}});
        });
        continue;
      }
      if (!forward) continue;
      for_each_implementation(
          dnnl::resampling_backward::primitive_desc(engine, how, src, dst, forward, attributes,
                                                    true),
          [&](const auto& d) {
            append(d, {{DNNL_ARG_DIFF_SRC, "src", d.diff_src_desc(), plain_src, true},
                       {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain_dst, false}});
          });
    }
  });
}

const Kind resize("resize", resize_candidates);

}  // namespace

}  // namespace pydlbench::cpu
