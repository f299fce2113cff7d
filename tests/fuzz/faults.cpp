// Preloaded: makes the call with a number fail, as a full disk, a lack of descriptors or of memory
// does.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

char armed[16];
long left = 0;

bool fails(const char* call, int error) {
  if (left <= 0 || std::strcmp(call, armed) != 0 || --left > 0) return false;
  errno = error;
  return true;
}

template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Calls the C library's function of this name, unless the call has to fail.
#define PASS(call, error, failure, name, ...)   \
  static auto* const next = real(&name, #name); \
  return fails(call, error) ? failure : next(__VA_ARGS__)

extern "C" {

// Makes the call with this number fail, counted from 1.
void fault_arm(const char* call, long number) {
  std::strncpy(armed, call, sizeof armed - 1);
  left = number;
}

// Returns whether the call has not been reached yet.
int fault_waits() { return left > 0; }

#undef open
#undef open64
#define OPEN(name)                                     \
  int name(const char* path, int flags, ...) {         \
    va_list rest;                                      \
    va_start(rest, flags);                             \
    const mode_t mode = va_arg(rest, mode_t);          \
    va_end(rest);                                      \
    PASS("open", EMFILE, -1, name, path, flags, mode); \
  }
int open(const char*, int, ...);
int open64(const char*, int, ...);
OPEN(open)
OPEN(open64)
ssize_t write(int file, const void* data, size_t size) {
  PASS("write", ENOSPC, -1, write, file, data, size);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  PASS("pwrite", ENOSPC, -1, pwrite, file, data, size, at);
}
ssize_t pwrite64(int file, const void* data, size_t size, off_t at) {
  PASS("pwrite", ENOSPC, -1, pwrite64, file, data, size, at);
}
int fsync(int file) { PASS("fsync", EIO, -1, fsync, file); }
int fdatasync(int file) { PASS("fsync", EIO, -1, fdatasync, file); }
int rename(const char* from, const char* to) { PASS("rename", ENOSPC, -1, rename, from, to); }
int pipe2(int* ends, int flags) { PASS("pipe", EMFILE, -1, pipe2, ends, flags); }
pid_t fork() { PASS("fork", EAGAIN, -1, fork); }
// A function that calls vfork must not return in the child: fork does the same, more slowly.
pid_t vfork() { PASS("fork", EAGAIN, -1, fork); }
#undef mmap
#undef mmap64
void* mmap(void* at, size_t size, int may, int flags, int file, off_t from) noexcept {
  PASS("mmap", ENOMEM, MAP_FAILED, mmap, at, size, may, flags, file, from);
}
void* mmap64(void* at, size_t size, int may, int flags, int file, off_t from) noexcept {
  PASS("mmap", ENOMEM, MAP_FAILED, mmap64, at, size, may, flags, file, from);
}

}  // extern "C"

// What our module and oneDNN allocate, in a process whose environment has the number.
void* operator new(std::size_t size) {
  static const bool read = [] {
    if (const char* number = std::getenv("FAULT_NEW")) fault_arm("new", std::atol(number));
    return true;
  }();
  Dl_info from;
  if (read && left > 0 && dladdr(__builtin_return_address(0), &from) != 0 &&
      (std::strstr(from.dli_fname, "/_cpu.") || std::strstr(from.dli_fname, "libdnnl")) &&
      fails("new", ENOMEM)) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
