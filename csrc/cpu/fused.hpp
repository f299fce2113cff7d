// The types of a layer's tensors, and the operations that oneDNN fuses with it: scales and zero
// points, a bias, and post-ops.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "core/fields.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

struct TensorTypes {
  dnnl::memory::data_type src, weights, dst;
};

// What fused operations refer to.
struct FusedShape {
  dnnl::memory::desc plain_dst;  // the caller's dense result
  int channel_axis;              // axis of the result's channels
  int weights_mask;              // mask of a scale for each output channel
  dnnl::memory::dims bias;       // dimensions of a bias
};

// Operations in the order in which they are applied: "src_scale", "weights_scale:per_oc",
// "dst_scale", "src_zero_point", "dst_zero_point", "bias"; "sum:SCALE"; activations with two
// numbers, "relu:0.1:0"; operations with another tensor, "add:per_oc", whose role is "operand" and
// its position among the post-ops.
class FusedOps {
 public:
  // Takes the fields "types" (of source, weights and result) and "fused" out of `fields`. Without
  // them, all tensors have the type of the precision and nothing is fused.
  FusedOps(Fields& fields, Precision precision);

  const TensorTypes& types() const { return types_; }

  // The type of the caller's result: integers of 32 bits stay exact, all else is float32.
  dnnl::memory::data_type plain_type() const {
    using Type = dnnl::memory::data_type;
    return types_.dst == Type::s32 ? Type::s32 : Type::f32;
  }

  dnnl::primitive_attr attributes(const FusedShape& shape) const;
  // A descriptor without dimensions if there is no bias.
  dnnl::memory::desc bias(const FusedShape& shape) const;
  // Appends the tensors of fused operations to the arguments of an implementation.
  void append(const dnnl::primitive_desc_base& descriptor, const FusedShape& shape,
              std::vector<Argument>& arguments) const;

 private:
  struct Operation {
    std::string name;
    std::vector<std::string> values;
  };

  TensorTypes types_;
  std::vector<Operation> operations_;
};

}  // namespace pydlbench::cpu
