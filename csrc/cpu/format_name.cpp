#include "cpu/format_name.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>
#include <vector>

#include "core/error.hpp"

namespace pydlbench::cpu {

std::string format_name(const dnnl::memory::desc& desc, const std::string& letters) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return "opaque";
  const auto dims = desc.get_dims();
  const auto strides = desc.get_strides();
  const auto blocks = desc.get_inner_blks();
  const auto indices = desc.get_inner_idxs();
  PYDLBENCH_CHECK(letters.size() == dims.size(), "one letter per dimension");

  std::vector<bool> blocked(dims.size(), false);
  for (const auto index : indices) blocked[static_cast<std::size_t>(index)] = true;

  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Dimensions of size one share their stride with a neighbour: the plain order decides then.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    if (strides[left] != strides[right]) return strides[left] > strides[right];
    return dims[left] > 1 && dims[right] == 1 && left < right;
  });

  std::string name;
  for (const auto index : order) {
    const char letter = letters[index];
    name += blocked[index] ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter)))
                           : letter;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    name += std::to_string(blocks[i]) + letters[static_cast<std::size_t>(indices[i])];
  }
  return name;
}

}  // namespace pydlbench::cpu
