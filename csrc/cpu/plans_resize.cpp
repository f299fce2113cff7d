// Plans of resizing: oneDNN's resampling, layouts x implementations.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/images.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;

struct ResizeProblem {
  std::int64_t batch, channels;
  static constexpr Field<ResizeProblem> fields[] = {{"batch", &ResizeProblem::batch},
                                                    {"channels", &ResizeProblem::channels}};
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
  memory::dims src_dims = given.take<std::vector<std::int64_t>>("in_size");
  memory::dims dst_dims = given.take<std::vector<std::int64_t>>("out_size");
  const auto p = problem_of<ResizeProblem>(given);
  PYDLBENCH_CHECK(
      !src_dims.empty() && src_dims.size() <= kMaxSides && src_dims.size() == dst_dims.size(),
      "one to three sides, as many of both");
  const auto sides = static_cast<int>(src_dims.size());
  for (auto* dims : {&src_dims, &dst_dims}) dims->insert(dims->begin(), {p.batch, p.channels});
  const std::string primitive = std::string("resampling ") + name_of(pass);
  if (pass == Pass::backward_weights) throw Unsupported("resize has no weights");
  const auto type = data_type(precision);
  const auto letters = with_sides("nc", sides);

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto plain = image::channels_first.of(sides);
    const memory::desc plain_src(src_dims, memory::data_type::f32, plain);
    const memory::desc plain_dst(dst_dims, memory::data_type::f32, plain);
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    for (const auto& [variant, tag] : kImageLayouts) {
      const memory::desc src(src_dims, type, tag.of(sides));
      const memory::desc dst(dst_dims, type, tag.of(sides));
      const auto append = [&, v = variant](const dnnl::primitive_desc_base& d,
                                           std::vector<Argument> arguments) {
        Candidate candidate{};
        candidate.primitive = primitive;
        candidate.variant = v;
        candidate.run = {d, std::move(arguments)};
        append_new(candidates, std::move(candidate), {letters, letters});
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
