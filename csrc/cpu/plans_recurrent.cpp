// Recurrent layers: oneDNN's LSTM, perhaps with a projection and peepholes, its GRU with the reset
// gate behind or before the product, and cells without gates.
#include <string>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

constexpr std::pair<const char*, Tag> kWeights[] = {{"any", Tag::any}, {"plain", Tag::abcde}};

struct RecurrentProblem {
  std::int64_t layers, directions, steps, batch, in_size, hidden;
  std::int64_t state;  // its size is that of the projection, if there is one
  bool peephole, projects;
  static constexpr Field<RecurrentProblem> fields[] = {
      {"layers", &RecurrentProblem::layers},   {"directions", &RecurrentProblem::directions},
      {"steps", &RecurrentProblem::steps},     {"batch", &RecurrentProblem::batch},
      {"in_size", &RecurrentProblem::in_size}, {"hidden", &RecurrentProblem::hidden},
  };
};

// Only an LSTM has the fields of a projection and of peepholes.
void take_special_fields(Fields& fields, RecurrentProblem& problem) {
  problem.state = fields.has("projection") ? fields.take<std::int64_t>("projection")  //
                                           : problem.hidden;
  problem.peephole = fields.has("peephole") && fields.take<bool>("peephole");
  problem.projects = fields.has("projected") && fields.take<bool>("projected");
  problem.projects |= problem.state != problem.hidden;
}

// The tensors of a layer in the primitive's layout or in the caller's layout; those that the layer
// lacks are empty.
struct Tensors {
  memory::desc src, src_iter, src_iter_c, weights, weights_iter, peephole, projection, bias, dst;
};

Tensors tensors_of(const RecurrentProblem& p, memory::dim gates, memory::dim biases,
                   memory::data_type type, Tag weights, Tag projection) {
  const auto f32 = memory::data_type::f32;
  const auto l = p.layers, d = p.directions;
  Tensors t{};
  t.src = {{p.steps, p.batch, p.in_size}, type, Tag::abc};
  t.src_iter = {{l, d, p.batch, p.state}, type, Tag::abcd};
  t.src_iter_c = {{l, d, p.batch, p.hidden}, f32, Tag::abcd};
  t.weights = {{l, d, p.in_size, gates, p.hidden}, type, weights};
  t.weights_iter = {{l, d, p.state, gates, p.hidden}, type, weights};
  if (p.peephole) t.peephole = {{l, d, 3, p.hidden}, f32, Tag::abcd};
  if (p.projects) t.projection = {{l, d, p.hidden, p.state}, type, projection};
  t.bias = {{l, d, biases, p.hidden}, f32, Tag::abcd};
  t.dst = {{p.steps, p.batch, d * p.state}, type, Tag::abc};
  return t;
}

// A cell with oneDNN's types. The backward pass uses the C interface: the C++ interface cannot
// request gradients of weights that overwrite the output.
struct Lstm {
  static constexpr memory::dim gates = 4, biases = 4;
  static constexpr bool has_memory = true;
  using Forward = dnnl::lstm_forward::primitive_desc;
  using Backward = dnnl::lstm_backward::primitive_desc;

  static Forward forward(dnnl::prop_kind kind, dnnl::rnn_direction direction, const Tensors& t,
                         const dnnl::primitive_attr& attributes) {
    return {cpu_engine(), kind,           direction,  t.src,        t.src_iter, t.src_iter_c,
            t.weights,    t.weights_iter, t.peephole, t.projection, t.bias,     t.dst,
            {},           memory::desc(), attributes, true};
  }
  static dnnl_status_t backward(dnnl_primitive_desc_t* made, dnnl_rnn_direction_t direction,
                                const Tensors& t, const Tensors& gradients, const Forward& hint,
                                const dnnl::primitive_attr& attributes) {
    return dnnl_lstm_backward_primitive_desc_create(
        made, cpu_engine().get(), dnnl_backward, direction, t.src.get(), t.src_iter.get(),
        t.src_iter_c.get(), t.weights.get(), t.weights_iter.get(), t.peephole.get(),
        t.projection.get(), t.bias.get(), t.dst.get(), nullptr, nullptr, gradients.src.get(),
        gradients.src_iter.get(), gradients.src_iter_c.get(), gradients.weights.get(),
        gradients.weights_iter.get(), gradients.peephole.get(), gradients.projection.get(),
        gradients.bias.get(), gradients.dst.get(), nullptr, nullptr,
        dnnl_rnn_flags_diff_weights_overwrite, hint.get(), attributes.get());
  }
};

// A GRU with three biases, or with a fourth one inside of the product with the reset gate.
template <typename ForwardPass, typename BackwardPass, memory::dim number, auto create>
struct Gru {
  static constexpr memory::dim gates = 3, biases = number;
  static constexpr bool has_memory = false;
  using Forward = typename ForwardPass::primitive_desc;
  using Backward = typename BackwardPass::primitive_desc;

  static Forward forward(dnnl::prop_kind kind, dnnl::rnn_direction direction, const Tensors& t,
                         const dnnl::primitive_attr& attributes) {
    return {cpu_engine(),   kind,   direction, t.src, t.src_iter, t.weights,
            t.weights_iter, t.bias, t.dst,     {},    attributes, true};
  }
  static dnnl_status_t backward(dnnl_primitive_desc_t* made, dnnl_rnn_direction_t direction,
                                const Tensors& t, const Tensors& gradients, const Forward& hint,
                                const dnnl::primitive_attr& attributes) {
    return create(made, cpu_engine().get(), dnnl_backward, direction, t.src.get(), t.src_iter.get(),
                  t.weights.get(), t.weights_iter.get(), t.bias.get(), t.dst.get(), nullptr,
                  gradients.src.get(), gradients.src_iter.get(), gradients.weights.get(),
                  gradients.weights_iter.get(), gradients.bias.get(), gradients.dst.get(), nullptr,
                  dnnl_rnn_flags_diff_weights_overwrite, hint.get(), attributes.get());
  }
};
using LbrGru = Gru<dnnl::lbr_gru_forward, dnnl::lbr_gru_backward, 4,
                   dnnl_lbr_gru_backward_primitive_desc_create>;
using VanillaGru =
    Gru<dnnl::gru_forward, dnnl::gru_backward, 3, dnnl_gru_backward_primitive_desc_create>;

// A cell without gates.
template <dnnl::algorithm how>
struct Plain {
  static constexpr memory::dim gates = 1, biases = 1;
  static constexpr bool has_memory = false;
  using Forward = dnnl::vanilla_rnn_forward::primitive_desc;
  using Backward = dnnl::vanilla_rnn_backward::primitive_desc;

  static Forward forward(dnnl::prop_kind kind, dnnl::rnn_direction direction, const Tensors& t,
                         const dnnl::primitive_attr& attributes) {
    return {cpu_engine(),   kind,   how,   direction, t.src,      t.src_iter, t.weights,
            t.weights_iter, t.bias, t.dst, {},        attributes, true};
  }
  static dnnl_status_t backward(dnnl_primitive_desc_t* made, dnnl_rnn_direction_t direction,
                                const Tensors& t, const Tensors& gradients, const Forward& hint,
                                const dnnl::primitive_attr& attributes) {
    return dnnl_vanilla_rnn_backward_primitive_desc_create(
        made, cpu_engine().get(), dnnl_backward, dnnl::convert_to_c(how), direction, t.src.get(),
        t.src_iter.get(), t.weights.get(), t.weights_iter.get(), t.bias.get(), t.dst.get(), nullptr,
        gradients.src.get(), gradients.src_iter.get(), gradients.weights.get(),
        gradients.weights_iter.get(), gradients.bias.get(), gradients.dst.get(), nullptr,
        dnnl_rnn_flags_diff_weights_overwrite, 0.0f, 0.0f, hint.get(), attributes.get());
  }
};

// The first implementation of a backward pass; empty if there is none.
template <typename Cell>
typename Cell::Backward backward_of(dnnl::rnn_direction direction, const Tensors& wanted,
                                    const Tensors& gradients, const typename Cell::Forward& forward,
                                    const dnnl::primitive_attr& attributes) {
  dnnl_primitive_desc_t raw = nullptr;
  const auto status =
      Cell::backward(&raw, dnnl::convert_to_c(direction), wanted, gradients, forward, attributes);
  if (status == dnnl_unimplemented) return {};
  dnnl::error::wrap_c_api(status, "could not create a primitive descriptor");
  typename Cell::Backward found(raw);  // clones
  dnnl_primitive_desc_destroy(raw);
  return found;
}

template <typename Cell, typename Descriptor>
std::vector<Argument> read_by(const Descriptor& d, const Tensors& plain) {
  std::vector<Argument> arguments{
      {DNNL_ARG_SRC_LAYER, "src", d.src_layer_desc(), plain.src, false},
      {DNNL_ARG_SRC_ITER, "src_iter", d.src_iter_desc(), plain.src_iter, false},
      {DNNL_ARG_WEIGHTS_LAYER, "weights", d.weights_layer_desc(), plain.weights, false},
      {DNNL_ARG_WEIGHTS_ITER, "weights_iter", d.weights_iter_desc(), plain.weights_iter, false},
      {DNNL_ARG_BIAS, "bias", d.bias_desc(), plain.bias, false}};
  if constexpr (Cell::has_memory) {
    arguments.push_back(
        {DNNL_ARG_SRC_ITER_C, "src_iter_c", d.src_iter_c_desc(), plain.src_iter_c, false});
    if (!plain.peephole.is_zero()) {
      arguments.push_back({DNNL_ARG_WEIGHTS_PEEPHOLE, "weights_peephole", d.weights_peephole_desc(),
                           plain.peephole, false});
    }
    if (!plain.projection.is_zero()) {
      arguments.push_back({DNNL_ARG_WEIGHTS_PROJECTION, "weights_projection",
                           d.weights_projection_desc(), plain.projection, false});
    }
  }
  return arguments;
}

template <typename Cell>
std::vector<Argument> arguments_of(const typename Cell::Forward& d, const Tensors& plain) {
  auto arguments = read_by<Cell>(d, plain);
  arguments.push_back({DNNL_ARG_DST_LAYER, "dst", d.dst_layer_desc(), plain.dst, true});
  return arguments;
}

template <typename Cell>
std::vector<Argument> arguments_of(const typename Cell::Backward& d, const Tensors& plain) {
  auto arguments = read_by<Cell>(d, plain);
  const auto written = [&](int index, const char* role, const memory::desc& desc,
                           const memory::desc& as_given) {
    arguments.push_back({index, role, desc, as_given, true});
  };
  arguments.push_back({DNNL_ARG_DIFF_DST_LAYER, "dst", d.diff_dst_layer_desc(), plain.dst, false});
  written(DNNL_ARG_DIFF_SRC_LAYER, "src", d.diff_src_layer_desc(), plain.src);
  written(DNNL_ARG_DIFF_SRC_ITER, "src_iter", d.diff_src_iter_desc(), plain.src_iter);
  written(DNNL_ARG_DIFF_WEIGHTS_LAYER, "weights", d.diff_weights_layer_desc(), plain.weights);
  written(DNNL_ARG_DIFF_WEIGHTS_ITER, "weights_iter", d.diff_weights_iter_desc(),
          plain.weights_iter);
  written(DNNL_ARG_DIFF_BIAS, "bias", d.diff_bias_desc(), plain.bias);
  if constexpr (Cell::has_memory) {
    written(DNNL_ARG_DIFF_SRC_ITER_C, "src_iter_c", d.diff_src_iter_c_desc(), plain.src_iter_c);
    if (!plain.peephole.is_zero()) {
      written(DNNL_ARG_DIFF_WEIGHTS_PEEPHOLE, "weights_peephole", d.diff_weights_peephole_desc(),
              plain.peephole);
    }
    if (!plain.projection.is_zero()) {
      written(DNNL_ARG_DIFF_WEIGHTS_PROJECTION, "weights_projection",
              d.diff_weights_projection_desc(), plain.projection);
    }
  }
  return arguments;
}

// Letters for the dimensions of each argument, by its role.
std::vector<std::string> letters_of(const std::vector<Argument>& arguments) {
  std::vector<std::string> letters;
  for (const auto& one : arguments) {
    const auto dimensions = one.plain.get_ndims();
    const bool gates = one.role == "bias" || one.role == "weights_peephole";
    const auto* others = gates ? "ldgo" : one.role == "weights_projection" ? "ldio" : "ldnc";
    letters.push_back(dimensions == 3 ? "tnc" : dimensions == 5 ? "ldigo" : others);
  }
  return letters;
}

template <typename Cell>
void plan(std::vector<Candidate>& candidates, const std::string& primitive,
          const RecurrentProblem& p, Pass pass, memory::data_type type) {
  const auto direction = p.directions == 2 ? dnnl::rnn_direction::bidirectional_concat
                                           : dnnl::rnn_direction::unidirectional_left2right;
  const auto f32 = memory::data_type::f32;
  const auto plain = tensors_of(p, Cell::gates, Cell::biases, f32, Tag::abcde, Tag::abcd);
  const auto attributes = user_scratchpad();
  const auto append = [&](const char* variant, Candidate candidate) {
    candidate.primitive = primitive;
    candidate.variant = variant;
    const auto letters = letters_of(candidate.run.arguments);
    append_new(candidates, std::move(candidate), letters);
    // The reference implementation of recurrent layers uses fast matrix products.
    candidates.back().is_reference = false;
    // oneDNN 3.2's kernels for bf16 compute wrong states if there is a projection.
    const auto& name = candidates.back().implementation;
    const bool wrong =
        name.find("amx") != std::string::npos || name.find("bf16") != std::string::npos;
    if (wrong && p.projects) candidates.pop_back();
  };
  for (const auto& [variant, tag] : kWeights) {
    // A gradient with a plain projection is planned, but fails when it runs.
    const auto projection = is_forward(pass) && tag != Tag::any ? Tag::abcd : Tag::any;
    const auto wanted = tensors_of(p, Cell::gates, Cell::biases, type, tag, projection);
    const auto kind = is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training;
    const auto forward = Cell::forward(kind, direction, wanted, attributes);
    if (is_forward(pass)) {
      for_each_implementation(forward, [&, v = variant](const auto& d) {
        Candidate candidate{};
        candidate.run = {d, arguments_of<Cell>(d, plain)};
        append(v, std::move(candidate));
      });
      continue;
    }
    if (!forward) continue;
    // Gradients are always in float32.
    const auto gradients = tensors_of(p, Cell::gates, Cell::biases, f32, tag, projection);
    for_each_implementation(backward_of<Cell>(direction, wanted, gradients, forward, attributes),
                            [&, v = variant](const auto& d) {
                              Candidate candidate{};
                              candidate.run = {d, arguments_of<Cell>(d, plain)};
                              candidate.forward =
                                  Invocation{forward, arguments_of<Cell>(forward, plain)};
                              // The backward pass reads the result, too.
                              candidate.forward->arguments.back().second_index = DNNL_ARG_DST_LAYER;
                              append(v, std::move(candidate));
                            });
  }
}

std::vector<Candidate> recurrent_candidates(const Fields& fields, Pass pass, Precision precision,
                                            bool /*thorough*/) {
  auto given = fields;
  const auto cell = given.take<std::string>("cell");
  const auto p = problem_of<RecurrentProblem>(given);
  const std::string primitive = cell + " " + name_of(pass);
  if (pass == Pass::backward_weights) throw Unsupported("backward-data has the weights', too");
  if (p.layers > 1 && p.directions > 1) {
    throw Unsupported(
        "oneDNN has no layers of two directions above one another; nearest: one layer");
  }
  const auto type = data_type(precision);
  if (!is_forward(pass) && p.projects && type != memory::data_type::f32) {
    // In 16 bits, it is planned, but fails when it runs.
    throw Unsupported("oneDNN's gradient of a projection is in fp32 only; nearest: fp32");
  }
  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    if (cell == "lstm") {
      plan<Lstm>(candidates, primitive, p, pass, type);
    } else if (cell == "gru") {
      plan<LbrGru>(candidates, primitive, p, pass, type);
    } else if (cell == "vanilla-gru") {
      plan<VanillaGru>(candidates, primitive, p, pass, type);
    } else if (cell == "rnn-tanh") {
      plan<Plain<dnnl::algorithm::eltwise_tanh>>(candidates, primitive, p, pass, type);
    } else if (cell == "rnn-relu") {
      plan<Plain<dnnl::algorithm::eltwise_relu>>(candidates, primitive, p, pass, type);
    } else {
      throw Unsupported("no recurrent kernel named " + cell);
    }
  });
}

const Kind recurrent("recurrent", recurrent_candidates);

}  // namespace

}  // namespace pydlbench::cpu
