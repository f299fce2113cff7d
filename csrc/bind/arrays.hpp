// Conversion of NumPy arrays to C++ and back, without copies.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/host_tensor.hpp"

namespace pydlbench {

// A dense float32 array, the type of all inputs.
using FloatArray = pybind11::array_t<float, pybind11::array::c_style>;

// Keeps a Python object alive. The last reference may be dropped while the GIL is released.
inline std::shared_ptr<void> keep_alive(const pybind11::object& object) {
  return {new pybind11::object(object), [](void* kept) {
            const pybind11::gil_scoped_acquire gil;
            delete static_cast<pybind11::object*>(kept);
          }};
}

// Returns the arrays by name, and keeps them alive.
inline std::map<std::string, HostTensor> host_tensors(
    const std::map<std::string, FloatArray>& arrays) {
  std::map<std::string, HostTensor> tensors;
  for (const auto& [name, array] : arrays) {
    tensors[name] = {array.data(), static_cast<std::size_t>(array.size()), keep_alive(array)};
  }
  return tensors;
}

// Returns an array that takes over the vector's data.
template <typename T>
pybind11::array_t<T> array_of(std::vector<T>&& values) {
  auto* holder = new std::vector<T>(std::move(values));
  const pybind11::capsule owner(holder, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(holder->size()), holder->data(),
                              owner);
}

}  // namespace pydlbench
