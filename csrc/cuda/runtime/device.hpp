// One GPU of this process: facts, stream, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;

namespace pydlbench::cuda {

struct DeviceFacts {
  int index;
  std::string name, uuid, pci;
  int major, minor, multiprocessors;
  std::size_t memory_bytes, l2_bytes, shared_bytes_per_block;
  double clock_hz, memory_clock_hz;  // rated maxima; 0 if unknown
  int memory_bus_bits, threads_per_multiprocessor;
  bool ecc, integrated;
  int driver_version, runtime_version;  // 13000 is 13.0
  int capability() const { return 10 * major + minor; }
};

// The number of GPUs. Throws Unsupported if there is no driver or no GPU.
int device_count();
DeviceFacts device_facts(int index);

class Device {
 public:
  // Makes the GPU current in this thread and creates its stream; throws Unsupported as above.
  explicit Device(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceFacts& facts() const;
  CUstream_st* stream() const;
  void make_current() const;
  void synchronize() const;  // throws errors of earlier kernels
  std::size_t free_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Owner of device memory. Checks the free memory before allocating: throws OutOfMemory with the
// requested and the free size, and leaves `reserve` bytes for the libraries.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Device& device, std::size_t bytes, const std::string& purpose);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  void fill(unsigned char value, CUstream_st* stream) const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace pydlbench::cuda
