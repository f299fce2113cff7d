// A backend descriptor of cuDNN: attributes are set, then it is finalised, then it can be read or
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
  // `what` names it in messages.
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
  // An enumeration of cuDNN's, which has an attribute type of its own.
  Descriptor& set_enum(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int value);
  Descriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      std::size_t count, const void* values);

  // Throws as check() does.
  void finalize();
  // The same without an exception: nothing but success or failure.
  bool try_finalize();

  std::int64_t integer(cudnnBackendAttributeName_t name) const;
  // The same, or `otherwise` where this version of cuDNN has no such attribute.
  std::int64_t integer_or(cudnnBackendAttributeName_t name, std::int64_t otherwise) const;
  int enumeration(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;
  std::vector<int> enumerations(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t most) const;
  std::string text(cudnnBackendAttributeName_t name) const;
  // The descriptors of `type` that this one holds, `most` at most.
  std::vector<Descriptor> children(cudnnBackendAttributeName_t name,
                                   cudnnBackendDescriptorType_t type, std::size_t most) const;
  // How many elements an attribute has.
  std::size_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  std::string what_;
};

}  // namespace pydlbench::cuda::cudnn
