#include "cuda/cublaslt/plans.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "cuda/cublaslt/search.hpp"
#include "cuda/mode.hpp"

namespace pydlbench::cuda::cublaslt {

namespace {

class GemmPlan final : public Plan {
 public:
  GemmPlan(std::shared_ptr<const Described> described, const Found& found, PlanFacts facts)
      : described_(std::move(described)),
        algorithm_(found.algorithm),
        workspace_bytes_(found.workspace_bytes),
        facts_(std::move(facts)) {}

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return described_->product.tensors; }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  void build() override {}  // the library's kernels are precompiled

  void enqueue(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) override {
    const auto& d = *described_;
    const auto& lt = d.session->lt;
    const auto& product = d.product;
    PYDLBENCH_CHECK(pointers.size() == product.tensors.size(), "one pointer for each tensor");
    if (d.fused) {
      // Part of the description, which several plans share, so set it for each run.
      set(lt, d.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
          static_cast<const void*>(pointers[product.bias]));
    }
    constexpr float one = 1.0f, zero = 0.0f;
    constexpr std::uint16_t half_one = 0x3c00;
    constexpr std::int32_t whole_one = 1;
    const void* alpha = d.compute == Compute::float16 ? static_cast<const void*>(&half_one)
                        : d.compute == Compute::int32 ? static_cast<const void*>(&whole_one)
                                                      : &one;
    const void* beta = &zero;  // all bits are zero in each type
    void* result = pointers[product.d.tensor];
    // beta is zero, so C is not read; use the result itself if the types agree.
    const bool same_type = product.tensors[product.d.tensor].type != DataType::float8_e4m3;
    lt.check(lt.matmul(d.session->handle.get(), d.operation.get(), alpha,
                       pointers[product.a.tensor], d.a.get(), pointers[product.b.tensor], d.b.get(),
                       beta, same_type ? result : nullptr, d.c.get(), result, d.d.get(),
                       &algorithm_, workspace, workspace_bytes_, stream),
             "cublasLtMatmul");
  }

 private:
  std::shared_ptr<const Described> described_;
  cublasLtMatmulAlgo_t algorithm_;
  std::size_t workspace_bytes_;
  PlanFacts facts_;
};

// Hopper's tensor cores accumulate 8-bit products with some 14 bits. Without FAST_ACCUM
// (search.cpp) partial sums are added to float32 at intervals; inference often uses it.
constexpr char kPromotedSums[] =
    "FAST_ACCUM off: partial sums are promoted to float32, which is slower than figures that are "
    "published with it on";
// The scales take an eighth (NVFP4: 1 byte of 9) or less of the operands' memory, and are the same
// for all rotating sets.
constexpr char kBlockScales[] = "block scales of 1, 1/2 and 1/4, which differ from block to block";
constexpr char kFastSums[] = "FAST_ACCUM on: partial sums are not promoted to float32";

PlanFacts facts(const Described& described, const Found& found, Pass pass, Mode mode, bool plain) {
  PlanFacts facts;
  facts.primitive = is_forward(pass)              ? "matrix product"
                    : pass == Pass::backward_data ? "matrix product backward-data"
                                                  : "matrix product backward-weights";
  if (described.fused) facts.primitive += " with bias and ReLU";
  facts.algorithm = text(found.config);
  facts.library = described.session->lt.version;
  facts.variant = plain ? "plain" : "transposed";
  facts.layout = described.product.layout;
  facts.accumulate = accumulate(described.compute, found.flags);
  facts.tensor_cores = tensor_cores(found.flags);
  facts.notes = names(found.flags);
  if (is_fp8(mode)) {
    facts.notes.emplace_back(mode == Mode::fp8_tc_fast ? kFastSums : kPromotedSums);
  }
  if (scale_block(mode) > 0) facts.notes.emplace_back(kBlockScales);
  if (!facts.tensor_cores) {
    facts.notes.emplace_back("the library names no operations: the mode is what was asked for");
  }
  return facts;
}

std::string bytes_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string bytes(sizeof algorithm, '\0');
  std::memcpy(bytes.data(), &algorithm, sizeof algorithm);
  return bytes;
}

// Removes duplicates, and numbers different algorithms with the same text.
class Names {
 public:
  // Returns false for a duplicate.
  bool give(PlanFacts& facts, const Found& found) {
    if (!seen_.insert({facts.layout, facts.accumulate, bytes_of(found.algorithm)}).second) {
      return false;
    }
    const auto plain = facts.algorithm;
    for (int i = 2; !taken_.insert({facts.layout, facts.accumulate, facts.algorithm}).second; ++i) {
      facts.algorithm = plain + " (" + std::to_string(i) + ")";
    }
    return true;
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string>;
  std::set<Key> seen_, taken_;
};

}  // namespace

std::vector<std::shared_ptr<Plan>> plans(const std::shared_ptr<const Session>& session,
                                         const PlainGemm& problem, Pass pass, Mode mode,
                                         int capability, std::size_t workspace_limit, bool fused) {
  if (fused && !is_forward(pass)) {
    throw Unsupported("bias and ReLU are fused into the forward pass only");
  }
  check_mode(mode, problem, capability);
  if (mode == Mode::int8 && (fused || !is_forward(pass))) {
    throw Unsupported("int8 products have a forward pass, with exact sums and nothing fused");
  }

  std::vector<std::shared_ptr<Plan>> plans;
  Names names;
  int offered = 0;
  std::string refused;
  for (const auto& storage : storages(pass, mode)) {
    bool is_answered = false;
    for (const auto compute : computes(mode)) {
      // Stricter than fp32 requires, and mostly the same kernels under other algorithms.
      if (compute == Compute::float32_pedantic && is_answered) continue;
      const auto described =
          describe(session, product(problem, pass, storage, mode, fused), mode, compute, fused);
      const auto searched = search(*described, mode, workspace_limit);
      offered += searched.offered;
      if (!searched.refused.empty()) refused = searched.refused;
      is_answered = is_answered || !searched.found.empty();
      for (const auto& found : searched.found) {
        auto named = facts(*described, found, pass, mode, storage.plain());
        if (!names.give(named, found)) continue;
        plans.push_back(std::make_shared<GemmPlan>(described, found, std::move(named)));
      }
    }
  }
  if (!plans.empty()) return plans;
  auto reason = session->lt.version + " has no " + name_of(mode) + " algorithm for this product";
  if (offered > 0) reason += ": none of " + std::to_string(offered) + " offered is of the mode";
  if (!refused.empty()) reason += "; " + refused;
  throw Unsupported(reason);
}

}  // namespace pydlbench::cuda::cublaslt
