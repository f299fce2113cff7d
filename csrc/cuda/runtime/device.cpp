#include "cuda/runtime/device.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <utility>

#include "cuda/runtime/check.hpp"
#include "cuda/runtime/handles.hpp"

namespace pydlbench::cuda {

namespace {

// Memory that is left free for contexts, code and workspaces of the libraries.
constexpr std::size_t kReserve = std::size_t{256} << 20;

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  PYDLBENCH_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

// The format of nvidia-smi.
std::string uuid_text(const cudaUUID_t& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string megabytes(std::size_t bytes) { return std::to_string(bytes / 1000000) + " MB"; }

void check_index(int index) {
  const int count = device_count();
  if (index >= 0 && index < count) return;
  throw Unsupported("there is no cuda:" + std::to_string(index) + "; there is " +
                    (count == 1 ? "cuda:0" : "cuda:0 to cuda:" + std::to_string(count - 1)));
}

}  // namespace

int device_count() {
  int count = 0;
  PYDLBENCH_CUDA_CHECK(cudaGetDeviceCount(&count));
  if (count == 0) throw_cuda_error(cudaErrorNoDevice, "cudaGetDeviceCount", __FILE__, __LINE__);
  return count;
}

DeviceFacts device_facts(int index) {
  check_index(index);
  // Only for properties that are no attributes: CUDA 13 removed fields of the structure.
  cudaDeviceProp properties{};
  PYDLBENCH_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  std::array<char, 32> pci{};
  PYDLBENCH_CUDA_CHECK(cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), index));

  // 0 if the driver does not report it, as for some virtual GPUs.
  const auto if_told = [index](cudaDeviceAttr which) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, index) == cudaSuccess) return value;
    static_cast<void>(cudaGetLastError());
    return 0;
  };
  const auto size = [index](cudaDeviceAttr which) {
    return static_cast<std::size_t>(attribute(which, index));
  };
  DeviceFacts facts{};
  facts.index = index;
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.pci = pci.data();
  facts.major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  facts.minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
  facts.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  facts.memory_bytes = properties.totalGlobalMem;
  facts.l2_bytes = size(cudaDevAttrL2CacheSize);
  facts.shared_bytes_per_block = size(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  facts.clock_hz = 1e3 * if_told(cudaDevAttrClockRate);
  facts.memory_clock_hz = 1e3 * if_told(cudaDevAttrMemoryClockRate);
  facts.memory_bus_bits = if_told(cudaDevAttrGlobalMemoryBusWidth);
  facts.threads_per_multiprocessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor, index);
  facts.ecc = attribute(cudaDevAttrEccEnabled, index) != 0;
  facts.integrated = attribute(cudaDevAttrIntegrated, index) != 0;
  PYDLBENCH_CUDA_CHECK(cudaDriverGetVersion(&facts.driver_version));
  PYDLBENCH_CUDA_CHECK(cudaRuntimeGetVersion(&facts.runtime_version));
  return facts;
}

struct Device::State {
  DeviceFacts facts;
  Stream stream;
};

Device::Device(int index) {
  auto facts = device_facts(index);
  PYDLBENCH_CUDA_CHECK(cudaSetDevice(index));
  state_ = std::make_unique<State>(State{std::move(facts), Stream::create()});
}

Device::~Device() = default;

const DeviceFacts& Device::facts() const { return state_->facts; }

CUstream_st* Device::stream() const { return state_->stream.get(); }

void Device::make_current() const { PYDLBENCH_CUDA_CHECK(cudaSetDevice(state_->facts.index)); }

void Device::synchronize() const {
  make_current();
  PYDLBENCH_CUDA_CHECK(cudaDeviceSynchronize());
}

std::size_t Device::free_bytes() const {
  make_current();
  std::size_t free = 0, total = 0;
  PYDLBENCH_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

DeviceMemory::DeviceMemory(const Device& device, std::size_t bytes, const std::string& purpose) {
  if (bytes == 0) return;
  const auto free = device.free_bytes();
  const auto refuse = [&](const std::string& why) {
    throw OutOfMemory(purpose + " needs " + megabytes(bytes) + " of GPU memory, and " + why);
  };
  // Without a sum, which could overflow.
  if (free < kReserve || bytes > free - kReserve) {
    refuse(megabytes(free) + " are free, of which " + megabytes(kReserve) +
           " are left to the libraries");
  }
  const auto code = cudaMalloc(&data_, bytes);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // or the next launch reports it
    data_ = nullptr;
    refuse("cudaMalloc found no such block although " + megabytes(free) + " are free");
  }
  PYDLBENCH_CUDA_CHECK(code);
  bytes_ = bytes;
}

DeviceMemory::~DeviceMemory() {
  // Waits for kernels that use it. Errors cannot be thrown here; sticky ones recur.
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::fill(unsigned char value, CUstream_st* stream) const {
  if (data_ != nullptr) PYDLBENCH_CUDA_CHECK(cudaMemsetAsync(data_, value, bytes_, stream));
}

}  // namespace pydlbench::cuda
