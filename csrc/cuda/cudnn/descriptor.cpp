#include "cuda/cudnn/descriptor.hpp"

#include <algorithm>
#include <utility>

#include "cuda/cudnn/library.hpp"

namespace pydlbench::cuda::cudnn {

Descriptor::Descriptor(cudnnBackendDescriptorType_t type, std::string what)
    : what_(std::move(what)) {
  check(api().create_descriptor(type, &descriptor_), what_);
}

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) api().destroy_descriptor(descriptor_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)), what_(std::move(other.what_)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(what_, other.what_);
  return *this;
}

Descriptor& Descriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t count, const void* values) {
  check(api().set_attribute(descriptor_, name, type, static_cast<std::int64_t>(count), values),
        what_ + ", attribute " + std::to_string(static_cast<int>(name)));
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name,
                            const std::vector<std::int64_t>& values) {
  return set_raw(name, CUDNN_TYPE_INT64, values.size(), values.data());
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, float value) {
  return set_raw(name, CUDNN_TYPE_FLOAT, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, bool value) {
  return set_raw(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
  return set_raw(name, CUDNN_TYPE_HANDLE, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return set_raw(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name,
                            const std::vector<const Descriptor*>& values) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const auto* value : values) raw.push_back(value->descriptor_);
  return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.size(), raw.data());
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const std::vector<void*>& pointers) {
  return set_raw(name, CUDNN_TYPE_VOID_PTR, pointers.size(), pointers.data());
}

Descriptor& Descriptor::set_text(cudnnBackendAttributeName_t name, const std::string& value) {
  return set_raw(name, CUDNN_TYPE_CHAR, value.size() + 1, value.c_str());
}

Descriptor& Descriptor::set_enum(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 int value) {
  return set_raw(name, type, 1, &value);
}

void Descriptor::finalize() { check(api().finalize(descriptor_), what_); }

bool Descriptor::try_finalize() { return api().finalize(descriptor_) == CUDNN_STATUS_SUCCESS; }

std::int64_t Descriptor::integer(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, found = 0;
  check(api().get_attribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &found, &value), what_);
  return value;
}

std::int64_t Descriptor::integer_or(cudnnBackendAttributeName_t name,
                                    std::int64_t otherwise) const {
  std::int64_t value = 0, found = 0;
  const auto status = api().get_attribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &found, &value);
  return status == CUDNN_STATUS_SUCCESS && found == 1 ? value : otherwise;
}

int Descriptor::enumeration(cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type) const {
  const auto values = enumerations(name, type, 1);
  return values.empty() ? 0 : values.front();
}

std::vector<int> Descriptor::enumerations(cudnnBackendAttributeName_t name,
                                          cudnnBackendAttributeType_t type,
                                          std::size_t most) const {
  std::vector<int> values(most);
  std::int64_t found = 0;
  check(api().get_attribute(descriptor_, name, type, static_cast<std::int64_t>(most), &found,
                            values.data()),
        what_);
  values.resize(std::min(most, static_cast<std::size_t>(found)));
  return values;
}

std::string Descriptor::text(cudnnBackendAttributeName_t name) const {
  std::string value(count(name, CUDNN_TYPE_CHAR), '\0');
  std::int64_t found = 0;
  check(api().get_attribute(descriptor_, name, CUDNN_TYPE_CHAR,
                            static_cast<std::int64_t>(value.size()), &found, value.data()),
        what_);
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

std::vector<Descriptor> Descriptor::children(cudnnBackendAttributeName_t name,
                                             cudnnBackendDescriptorType_t type,
                                             std::size_t most) const {
  std::vector<Descriptor> children;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::size_t i = 0; i < most; ++i) {
    raw.push_back(children.emplace_back(type, what_).descriptor_);
  }
  if (most == 0) return children;
  std::int64_t found = 0;
  check(api().get_attribute(descriptor_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            static_cast<std::int64_t>(most), &found, raw.data()),
        what_);
  children.erase(children.begin() +
                     static_cast<std::ptrdiff_t>(std::min(most, static_cast<std::size_t>(found))),
                 children.end());
  return children;
}

std::size_t Descriptor::count(cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type) const {
  std::int64_t found = 0;
  check(api().get_attribute(descriptor_, name, type, 0, &found, nullptr), what_);
  return static_cast<std::size_t>(found);
}

}  // namespace pydlbench::cuda::cudnn
