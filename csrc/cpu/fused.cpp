#include "cpu/fused.hpp"

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::algorithm;
using dnnl::memory;
using Type = memory::data_type;

const std::map<std::string, Type> kTypes{{"f32", Type::f32}, {"bf16", Type::bf16},
                                         {"f16", Type::f16}, {"s32", Type::s32},
                                         {"s8", Type::s8},   {"u8", Type::u8}};

const std::map<std::string, algorithm> kActivations{{"relu", algorithm::eltwise_relu},
                                                    {"tanh", algorithm::eltwise_tanh},
                                                    {"elu", algorithm::eltwise_elu},
                                                    {"logistic", algorithm::eltwise_logistic},
                                                    {"gelu_erf", algorithm::eltwise_gelu_erf},
                                                    {"gelu_tanh", algorithm::eltwise_gelu_tanh},
                                                    {"swish", algorithm::eltwise_swish},
                                                    {"mish", algorithm::eltwise_mish},
                                                    {"hardswish", algorithm::eltwise_hardswish},
                                                    {"hardsigmoid", algorithm::eltwise_hardsigmoid},
                                                    {"linear", algorithm::eltwise_linear},
                                                    {"clip", algorithm::eltwise_clip}};

const std::map<std::string, algorithm> kBinary{
    {"add", algorithm::binary_add}, {"sub", algorithm::binary_sub}, {"mul", algorithm::binary_mul},
    {"div", algorithm::binary_div}, {"max", algorithm::binary_max}, {"min", algorithm::binary_min}};

// Attributes that belong to a tensor, by the name of the operation.
struct Attribute {
  int kind, tensor;
};
const std::map<std::string, Attribute> kAttributes{
    {"src_scale", {DNNL_ARG_ATTR_SCALES, DNNL_ARG_SRC}},
    {"weights_scale", {DNNL_ARG_ATTR_SCALES, DNNL_ARG_WEIGHTS}},
    {"dst_scale", {DNNL_ARG_ATTR_SCALES, DNNL_ARG_DST}},
    {"src_zero_point", {DNNL_ARG_ATTR_ZERO_POINTS, DNNL_ARG_SRC}},
    {"dst_zero_point", {DNNL_ARG_ATTR_ZERO_POINTS, DNNL_ARG_DST}}};

memory::desc dense(const memory::dims& dims, Type type) {
  memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return {dims, type, strides};
}

// The float32 tensor of a binary operation as the caller has it.
memory::desc plain_operand(const std::string& policy, const FusedShape& shape) {
  auto dims = shape.plain_dst.get_dims();
  if (policy == "per_tensor") return {dims, Type::f32, shape.plain_dst.get_strides()};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (policy != "per_oc" || static_cast<int>(i) != shape.channel_axis) dims[i] = 1;
  }
  return dense(dims, Type::f32);
}

float number(const std::string& text) { return std::stof(text); }

}  // namespace

FusedOps::FusedOps(Fields& fields, Precision precision) {
  if (fields.has("types")) {
    const auto names = fields.take<std::vector<std::string>>("types");
    if (names.size() != 3) fields.fail("the field types has not three types");
    types_ = {kTypes.at(names[0]), kTypes.at(names[1]), kTypes.at(names[2])};
  } else {
    const auto type = data_type(precision);
    types_ = {type, type, type};
  }
  if (!fields.has("fused")) return;
  for (const auto& text : fields.take<std::vector<std::string>>("fused")) {
    std::istringstream words(text);
    Operation operation;
    std::getline(words, operation.name, ':');
    for (std::string word; std::getline(words, word, ':');) operation.values.push_back(word);
    const auto known = kAttributes.count(operation.name) + kActivations.count(operation.name) +
                       kBinary.count(operation.name);
    if (known == 0 && operation.name != "bias" && operation.name != "sum") {
      fields.fail("no such operation to fuse: " + operation.name);
    }
    operations_.push_back(std::move(operation));
  }
}

dnnl::primitive_attr FusedOps::attributes(const FusedShape& shape) const {
  auto attributes = user_scratchpad();
  dnnl::post_ops post_ops;
  for (const auto& [name, values] : operations_) {
    if (const auto found = kAttributes.find(name); found != kAttributes.end()) {
      const auto [kind, tensor] = found->second;
      const int mask = !values.empty() && values[0] == "per_oc" ? shape.weights_mask : 0;
      if (kind == DNNL_ARG_ATTR_SCALES) {
        attributes.set_scales_mask(tensor, mask);
      } else {
        attributes.set_zero_points_mask(tensor, mask);
      }
    } else if (name == "sum") {
      post_ops.append_sum(number(values.at(0)));
    } else if (const auto activation = kActivations.find(name); activation != kActivations.end()) {
      post_ops.append_eltwise(activation->second, number(values.at(0)), number(values.at(1)));
    } else if (const auto binary = kBinary.find(name); binary != kBinary.end()) {
      const auto plain = plain_operand(values.at(0), shape);
      post_ops.append_binary(
          binary->second, values[0] == "per_tensor"
                              ? memory::desc(plain.get_dims(), Type::f32, memory::format_tag::any)
                              : plain);
    }
  }
  if (post_ops.len() > 0) attributes.set_post_ops(post_ops);
  return attributes;
}

memory::desc FusedOps::bias(const FusedShape& shape) const {
  for (const auto& operation : operations_) {
    if (operation.name == "bias") return dense(shape.bias, Type::f32);
  }
  return {};
}

void FusedOps::append(const dnnl::primitive_desc_base& descriptor, const FusedShape& shape,
                      std::vector<Argument>& arguments) const {
  const auto channels = shape.plain_dst.get_dims()[static_cast<std::size_t>(shape.channel_axis)];
  int position = 0;  // among the post-ops
  for (const auto& [name, values] : operations_) {
    if (name == "bias") {
      const auto desc = bias(shape);
      arguments.push_back({DNNL_ARG_BIAS, name, desc, desc, false});
    } else if (const auto found = kAttributes.find(name); found != kAttributes.end()) {
      const auto [kind, tensor] = found->second;
      const memory::dims size{!values.empty() && values[0] == "per_oc" ? channels : 1};
      const auto type = kind == DNNL_ARG_ATTR_SCALES ? Type::f32 : Type::s32;
      arguments.push_back({kind | tensor, name, dense(size, type), dense(size, Type::f32), false});
    } else if (kBinary.count(name) > 0) {
      const int index = DNNL_ARG_ATTR_MULTIPLE_POST_OP(position) | DNNL_ARG_SRC_1;
      arguments.push_back({index, "operand" + std::to_string(position++),
                           descriptor.query_md(dnnl::query::exec_arg_md, index),
                           plain_operand(values.at(0), shape), false});
    } else {
      if (name == "sum") {
        for (auto& argument : arguments) argument.is_updated |= argument.is_output;
      }
      ++position;
    }
  }
}

}  // namespace pydlbench::cpu
