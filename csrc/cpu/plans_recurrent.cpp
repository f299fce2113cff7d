// Recurrent layers: oneDNN's LSTM, its GRU with the reset gate behind the product, and cells
// without gates.
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
  static constexpr Field<RecurrentProblem> fields[] = {
      {"layers", &RecurrentProblem::layers},   {"directions", &RecurrentProblem::directions},
      {"steps", &RecurrentProblem::steps},     {"batch", &RecurrentProblem::batch},
      {"in_size", &RecurrentProblem::in_size}, {"hidden", &RecurrentProblem::hidden},
  };
};

// The tensors of a layer in the primitive's layout or in the caller's layout.
struct Tensors {
  memory::desc src, src_iter, src_iter_c, weights, weights_iter, bias, dst;
};

Tensors tensors_of(const RecurrentProblem& p, memory::dim gates, memory::dim biases,
                   memory::data_type type, Tag weights) {
  const auto f32 = memory::data_type::f32;
  const auto l = p.layers, d = p.directions;
  return {{{p.steps, p.batch, p.in_size}, type, Tag::abc},
          {{l, d, p.batch, p.hidden}, type, Tag::abcd},
          {{l, d, p.batch, p.hidden}, f32, Tag::abcd},
          {{l, d, p.in_size, gates, p.hidden}, type, weights},
          {{l, d, p.hidden, gates, p.hidden}, type, weights},
          {{l, d, biases, p.hidden}, f32, Tag::abcd},
          {{p.steps, p.batch, d * p.hidden}, type, Tag::abc}};
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
    return {cpu_engine(),   kind,   direction, t.src, t.src_iter,     t.src_iter_c, t.weights,
            t.weights_iter, t.bias, t.dst,     {},    memory::desc(), attributes,   true};
  }
  static dnnl_status_t backward(dnnl_primitive_desc_t* made, dnnl_rnn_direction_t direction,
                                const Tensors& t, const Tensors& gradients, const Forward& hint,
                                const dnnl::primitive_attr& attributes) {
    return dnnl_lstm_backward_primitive_desc_create(
        made, cpu_engine().get(), dnnl_backward, direction, t.src.get(), t.src_iter.get(),
        t.src_iter_c.get(), t.weights.get(), t.weights_iter.get(), nullptr, nullptr, t.bias.get(),
        t.dst.get(), nullptr, nullptr, gradients.src.get(), gradients.src_iter.get(),
        gradients.src_iter_c.get(), gradients.weights.get(), gradients.weights_iter.get(), nullptr,
        nullptr, gradients.bias.get(), gradients.dst.get(), nullptr, nullptr,
        dnnl_rnn_flags_diff_weights_overwrite, hint.get(), attributes.get());
  }
};

struct Gru {
  static constexpr memory::dim gates = 3, biases = 4;
  static constexpr bool has_memory = false;
  using Forward = dnnl::lbr_gru_forward::primitive_desc;
  using Backward = dnnl::lbr_gru_backward::primitive_desc;

  static Forward forward(dnnl::prop_kind kind, dnnl::rnn_direction direction, const Tensors& t,
                         const dnnl::primitive_attr& attributes) {
    return {cpu_engine(),   kind,   direction, t.src, t.src_iter, t.weights,
            t.weights_iter, t.bias, t.dst,     {},    attributes, true};
  }
  static dnnl_status_t backward(dnnl_primitive_desc_t* made, dnnl_rnn_direction_t direction,
                                const Tensors& t, const Tensors& gradients, const Forward& hint,
                                const dnnl::primitive_attr& attributes) {
    return dnnl_lbr_gru_backward_primitive_desc_create(
        made, cpu_engine().get(), dnnl_backward, direction, t.src.get(), t.src_iter.get(),
        t.weights.get(), t.weights_iter.get(), t.bias.get(), t.dst.get(), nullptr,
        gradients.src.get(), gradients.src_iter.get(), gradients.weights.get(),
        gradients.weights_iter.get(), gradients.bias.get(), gradients.dst.get(), nullptr,
        dnnl_rnn_flags_diff_weights_overwrite, hint.get(), attributes.get());
  }
};

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
  }
  return arguments;
}

// Letters for the dimensions of each argument, by its role.
std::vector<std::string> letters_of(const std::vector<Argument>& arguments) {
  std::vector<std::string> letters;
  for (const auto& one : arguments) {
    const auto dimensions = one.plain.get_ndims();
    const auto* images = one.role == "bias" ? "ldgo" : "ldnc";
    letters.push_back(dimensions == 3 ? "tnc" : dimensions == 5 ? "ldigo" : images);
  }
  return letters;
}

template <typename Cell>
void plan(std::vector<Candidate>& candidates, const std::string& primitive,
          const RecurrentProblem& p, Pass pass, memory::data_type type) {
  const auto direction = p.directions == 2 ? dnnl::rnn_direction::bidirectional_concat
                                           : dnnl::rnn_direction::unidirectional_left2right;
  const auto f32 = memory::data_type::f32;
  const auto plain = tensors_of(p, Cell::gates, Cell::biases, f32, Tag::abcde);
  const auto attributes = user_scratchpad();
  const auto append = [&](const char* variant, Candidate candidate) {
    candidate.primitive = primitive;
    candidate.variant = variant;
    const auto letters = letters_of(candidate.run.arguments);
    append_new(candidates, std::move(candidate), letters);
    // The reference implementation of recurrent layers uses fast matrix products.
    candidates.back().is_reference = false;
  };
  for (const auto& [variant, tag] : kWeights) {
    const auto wanted = tensors_of(p, Cell::gates, Cell::biases, type, tag);
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
    const auto gradients = tensors_of(p, Cell::gates, Cell::biases, f32, tag);
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
  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    if (cell == "lstm") {
      plan<Lstm>(candidates, primitive, p, pass, type);
    } else if (cell == "gru") {
      plan<Gru>(candidates, primitive, p, pass, type);
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
