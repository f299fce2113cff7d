// A backend descriptor of cuDNN: its attributes are set, it is finalised, then it can be read or
// used.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace pydlbench::cuda::cudnn {

class Descriptor {
 public:
  // `what` is its name in messages.
  Descriptor(cudnnBackendDescriptorType_t type, std::string what);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values);
  Descriptor& set(cudnnBackendAttributeName_t name, float value);
  Descriptor& set(cudnnBackendAttributeName_t name, bool value);
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnHandle_t value);
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<const Descriptor*>& values);
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<void*>& pointers);
  Descriptor& set_text(cudnnBackendAttributeName_t name, const std::string& value);
  // An enumeration of cuDNN, which has its own attribute type.
  Descriptor& set_enum(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int value);
  Descriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      std::size_t count, const void* values);

  // Throws as check() does.
  void finalize();
  // As finalize(), but returns whether it succeeded.
  bool try_finalize();

  std::int64_t integer(cudnnBackendAttributeName_t name) const;
  // As integer(), or `otherwise` if this version of cuDNN has no such attribute.
  std::int64_t integer_or(cudnnBackendAttributeName_t name, std::int64_t otherwise) const;
  int enumeration(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;
  std::vector<int> enumerations(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t most) const;
  std::string text(cudnnBackendAttributeName_t name) const;
  // The descriptors of `type` in an attribute, at most `most`.
  std::vector<Descriptor> children(cudnnBackendAttributeName_t name,
                                   cudnnBackendDescriptorType_t type, std::size_t most) const;
  // Number of elements of an attribute.
  std::size_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  std::string what_;
};

}  // namespace pydlbench::cuda::cudnn
