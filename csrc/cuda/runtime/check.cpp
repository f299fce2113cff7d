#include "cuda/runtime/check.hpp"

#include <dlfcn.h>

#include <string>

namespace pydlbench::cuda {

namespace {

std::string no_driver(const std::string& why) {
  return "no NVIDIA driver: " + why +
         ", so no GPU can be used; install the driver on the host (in a container, start it with "
         "access to the GPU) or use --device cpu";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The runtime also reports "insufficient driver" if there is no driver.
std::string insufficient_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return no_driver("libcuda.so.1 cannot be loaded");
  dlclose(driver);
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    return no_driver("libcuda.so.1 is there but does not work");
  }
  return "the NVIDIA driver is too old: it supports CUDA " + version_text(version) +
         ", and pydlbench was built with CUDA " + version_text(CUDART_VERSION) +
         "; update the driver or build pydlbench with an older toolkit";
}

// A sentence on missing hardware or software; empty for other errors.
std::string lacking(cudaError_t code) {
  switch (code) {
    case cudaErrorInsufficientDriver:
      return insufficient_driver();
    case cudaErrorStubLibrary:
      return no_driver("libcuda.so.1 is the toolkit's stub, not a driver");
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no GPU to this process, so no GPU can be used; check "
             "nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu";
    case cudaErrorInvalidDevice:
      return "there is no GPU of this number; `nvidia-smi -L` lists those of this machine";
    case cudaErrorDevicesUnavailable:
      return "the GPU is busy or in exclusive mode: another process holds it";
    case cudaErrorSystemDriverMismatch:
      return "the NVIDIA driver's library and its kernel module differ in version: restart after "
             "an update, or mount the host's library into the container";
    case cudaErrorSystemNotReady:
      return "the GPU's system services are not running yet (nvidia-fabricmanager on machines with "
             "NVSwitch)";
    case cudaErrorCompatNotSupportedOnDevice:
      return "the CUDA compatibility library does not support this GPU: update the driver";
    case cudaErrorInitializationError:
      return "the NVIDIA driver could not be initialised: check nvidia-smi";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
      return "pydlbench was not built for this GPU: build it again with CMAKE_CUDA_ARCHITECTURES "
             "set to its compute capability";
    default:
      return {};
  }
}

}  // namespace

bool is_sticky(cudaError_t code) {
  // Only later headers of CUDA 12 have the names: cudaErrorContained, cudaErrorTensorMemoryLeak,
  // cudaErrorExternalDevice.
  if (const int number = code; number == 226 || number == 721 || number == 911) return true;
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorAssert:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsClientTerminated:
    case cudaErrorCudartUnloading:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line) {
  // Clear the error, or the next call returns it again; sticky ones remain.
  static_cast<void>(cudaGetLastError());
  if (const auto reason = lacking(code); !reason.empty()) throw Unsupported(reason);
  std::string name = file;
  if (const auto slash = name.rfind('/'); slash != std::string::npos) name.erase(0, slash + 1);
  const std::string reason = std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) +
                             ") from " + call + " at " + name + ":" + std::to_string(line);
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory("GPU memory: " + reason);
  if (is_sticky(code)) throw DeviceLost("the GPU's context is lost: " + reason);
  throw PrimitiveFailure("CUDA", reason);
}

}  // namespace pydlbench::cuda
