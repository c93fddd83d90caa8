// SPDX-License-Identifier: Apache-2.0
// What the calls of NVIDIA's libraries share: opening a library, and the device that a call is for.
//
// Libraries and the CUDA driver are opened when they are first needed, and what is used of the driver's interface is
// declared here, so that all this compiles where CUDA is not installed.
#ifndef TVM_STITCH_COMPUTE_CUDA_DEVICE_H_
#define TVM_STITCH_COMPUTE_CUDA_DEVICE_H_

#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tvm_stitch {
// Each library of calls has a copy of its own of what is here.
namespace {

namespace ffi = tvm::ffi;

template <typename Function>
void Resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) TVM_FFI_THROW(RuntimeError) << "tvm_stitch: " << name << " is not in the library opened";
}

// Where one of NVIDIA's libraries may lie, beside the places that the loader searches: wheels in the folder of packages
// that libtvm_ffi was loaded from, and the CUDA toolkit.
inline std::vector<std::string> Folders(const std::vector<std::string>& in_wheels) {
  std::vector<std::string> folders = {""};
  Dl_info found{};
  void* symbol = dlsym(RTLD_DEFAULT, "TVMFFIEnvGetStream");
  if (symbol != nullptr && dladdr(symbol, &found) != 0 && found.dli_fname != nullptr) {
    std::string library = found.dli_fname;  // .../tvm_ffi/lib/libtvm_ffi.so
    std::string packages = library.substr(0, library.rfind('/') + 1) + "../../";
    for (const std::string& folder : in_wheels) folders.push_back(packages + folder);
  }
  const char* home = std::getenv("CUDA_HOME");
  if (home != nullptr && *home != 0) folders.push_back(std::string(home) + "/lib64/");
  folders.push_back("/usr/local/cuda/lib64/");
  return folders;
}

// Opens a library: the file ``path``; if that is empty the file that an environment variable names; else the first of
// ``names`` that is found.
inline void* OpenFile(const char* title, const std::string& path, const char* variable,
                      const std::vector<std::string>& names, const std::vector<std::string>& in_wheels,
                      const char* advice) {
  void* file = nullptr;
  std::string said;
  auto attempt = [&](const std::string& name) {
    if (file != nullptr) return;
    file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* error = file == nullptr ? dlerror() : nullptr;
    if (error != nullptr) said += (said.empty() ? "" : "; ") + std::string(error);
  };
  const char* named = std::getenv(variable);
  if (!path.empty()) {
    attempt(path);
  } else if (named != nullptr && *named != 0) {
    attempt(named);
  } else {
    for (const std::string& name : names) {
      for (const std::string& folder : Folders(in_wheels)) {
        if (folder.empty() || access((folder + name).c_str(), R_OK) == 0) attempt(folder + name);
      }
    }
  }
  if (file == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "tvm_stitch: " << title << " cannot be opened: " << advice << " (" << said << ")";
  }
  return file;
}

// What is the same in all libraries' interfaces. A library's own has a name, ``kTitle``, and opens it, ``Open(path)``:
// from a path, or from where it may lie if that is empty.
using Handle = void*;
using Opaque = void*;

struct Interface {
  int (*create)(Handle*);
  size_t (*version)();
  const char* (*status_text)(int);
};

// A library's interface, opened the first time from a path; it lives as long as the process.
template <typename Library>
const Library& OpenLibrary(const std::string& path) {
  static std::mutex lock;
  static const Library* opened = nullptr;
  std::lock_guard<std::mutex> guard(lock);
  if (opened == nullptr) opened = Library::Open(path).release();
  return *opened;
}

template <typename Library>
const Library& The() {
  static const Library& library = OpenLibrary<Library>("");
  return library;
}

template <typename Library>
void CheckStatus(int status, const char* step) {
  if (status == 0) return;
  TVM_FFI_THROW(RuntimeError) << "tvm_stitch: " << Library::kTitle << ", " << step << ": "
                              << The<Library>().status_text(status);
}

// A library's handle of the current device, among those that were made.
template <typename Library>
Handle HandleOf(int device, std::map<int, Handle>* handles) {
  auto [at, is_new] = handles->try_emplace(device, nullptr);
  if (is_new) {
    int status = The<Library>().create(&at->second);
    if (status != 0) handles->erase(at);
    CheckStatus<Library>(status, "creating a handle");
  }
  return at->second;
}

struct Driver {
  int (*current_device)(int*);
  int (*device)(int*, int ordinal);
  int (*device_name)(char*, int length, int device);
  int (*retain_context)(void**, int device);
  int (*push)(void*);
  int (*pop)(void**);
  int (*fill)(uint64_t address, unsigned char value, size_t bytes, void* stream);
  int (*fill_lines)(uint64_t address, size_t pitch, unsigned char value, size_t width, size_t height, void* stream);
  int (*is_capturing)(void* stream, int* status);
  int (*event_create)(void**, unsigned flags);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void* stream);
  int (*event_wait)(void*);
  int (*event_elapsed)(float* milliseconds, void* begin, void* end);
};

inline const Driver& TheDriver() {
  static const Driver driver = [] {
    void* file = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) TVM_FFI_THROW(RuntimeError) << "tvm_stitch: no CUDA driver: " << dlerror();
    Driver made;
    Resolve(file, "cuCtxGetDevice", &made.current_device);
    Resolve(file, "cuDeviceGet", &made.device);
    Resolve(file, "cuDeviceGetName", &made.device_name);
    Resolve(file, "cuDevicePrimaryCtxRetain", &made.retain_context);
    Resolve(file, "cuCtxPushCurrent_v2", &made.push);
    Resolve(file, "cuCtxPopCurrent_v2", &made.pop);
    Resolve(file, "cuMemsetD8Async", &made.fill);
    Resolve(file, "cuMemsetD2D8Async", &made.fill_lines);
    Resolve(file, "cuStreamIsCapturing", &made.is_capturing);
    Resolve(file, "cuEventCreate", &made.event_create);
    Resolve(file, "cuEventDestroy_v2", &made.event_destroy);
    Resolve(file, "cuEventRecord", &made.event_record);
    Resolve(file, "cuEventSynchronize", &made.event_wait);
    Resolve(file, "cuEventElapsedTime", &made.event_elapsed);
    return made;
  }();
  return driver;
}

inline void CheckDriver(int status, const char* step) {
  if (status != 0) TVM_FFI_THROW(RuntimeError) << "tvm_stitch: CUDA driver, " << step << ": error " << status;
}

// While it lives, a device's primary context is current, which is where the CUDA runtime keeps everything.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    const Driver& driver = TheDriver();
    int current = -1;
    if (driver.current_device(&current) == 0 && current == device) return;
    static std::mutex lock;
    static std::map<int, void*> contexts;  // retained for as long as the process lives
    std::lock_guard<std::mutex> guard(lock);
    auto [at, is_new] = contexts.try_emplace(device, nullptr);
    if (is_new) {
      int status = driver.retain_context(&at->second, device);
      if (status != 0) contexts.erase(at);
      CheckDriver(status, "taking the device's context");
    }
    CheckDriver(driver.push(at->second), "making the device current");
    pushed_ = true;
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() {
    void* popped;
    if (pushed_) TheDriver().pop(&popped);
  }

 private:
  bool pushed_ = false;
};

// The library's numbers of the dtypes that operands have.
struct TypeNumbers {
  int float32, float16, bfloat16;
};

inline int NumberOf(DLDataType dtype, const TypeNumbers& numbers, const char* what) {
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 32) return numbers.float32;
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 16) return numbers.float16;
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return numbers.bfloat16;
  TVM_FFI_THROW(TypeError) << "tvm_stitch: " << what << " are of float32, float16 or bfloat16";
  return 0;
}

// Calls ``visit`` with each of some words that single spaces part.
template <typename Visit>
void EachWord(std::string_view words, Visit visit) {
  while (!words.empty()) {
    std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    visit(word);
  }
}

inline char* AddressOf(const DLTensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }

inline int64_t SizeOf(const DLTensor& tensor) {
  int64_t size = 1;
  for (int i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  return size;
}

// The largest power of two that divides an address, ``most`` (one itself) at most.
inline uint32_t AlignmentOf(const void* address, uint32_t most) {
  auto bits = reinterpret_cast<uintptr_t>(address) | most;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

inline void FillWithZeros(const DLTensor& tensor, void* stream) {
  size_t bytes = static_cast<size_t>(SizeOf(tensor)) * tensor.dtype.bits / 8;
  auto address = reinterpret_cast<uint64_t>(AddressOf(tensor));
  if (bytes > 0) CheckDriver(TheDriver().fill(address, 0, bytes, stream), "filling with zeros");
}

inline bool IsCapturing(void* stream) {
  int status = 0;
  CheckDriver(TheDriver().is_capturing(stream, &status), "asking a stream");
  return status != 0;
}

}  // namespace
}  // namespace tvm_stitch

// Exports a library's two functions, open(path) -> version and one other, as a library of TVM's does: under symbols of
// their names behind a prefix.
//
// A model that TVM's VM interprets finds its own copy, as a function of its library. One that was compiled with
// exec_mode="compiled" looks in the registry alone: the first copy that a process loads is there, and stays loaded.
#define TVM_STITCH_EXPORT(LIBRARY, NAME, CALL)                                                                       \
  extern "C" {                                                                                                       \
  TVM_FFI_DLL_EXPORT int TVMStitchOpen_##LIBRARY(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) __asm__(              \
      "__tvm_ffi_tvm_stitch." #LIBRARY ".open");                                                                     \
  TVM_FFI_DLL_EXPORT int TVMStitchCall_##LIBRARY(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) __asm__(              \
      "__tvm_ffi_tvm_stitch." #LIBRARY "." #NAME);                                                                   \
                                                                                                                     \
  int TVMStitchOpen_##LIBRARY(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {                      \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                                       \
    if (count != 1) TVM_FFI_THROW(TypeError) << "tvm_stitch: a library is opened by one path";                       \
    auto path = reinterpret_cast<const tvm::ffi::AnyView*>(args)->cast<tvm::ffi::String>();                          \
    *reinterpret_cast<tvm::ffi::Any*>(result) = static_cast<int64_t>(OpenLibrary<Library>(path).version());                  \
    TVM_FFI_SAFE_CALL_END();                                                                                         \
  }                                                                                                                  \
                                                                                                                     \
  int TVMStitchCall_##LIBRARY(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {                      \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                                       \
    CALL(tvm::ffi::PackedArgs(reinterpret_cast<const tvm::ffi::AnyView*>(args), count),                              \
         reinterpret_cast<tvm::ffi::Any*>(result));                                                                  \
    TVM_FFI_SAFE_CALL_END();                                                                                         \
  }                                                                                                                  \
  }                                                                                                                  \
                                                                                                                     \
  TVM_FFI_STATIC_INIT_BLOCK() {                                                                                      \
    constexpr const char* name = "tvm_stitch." #LIBRARY "." #NAME;                                                   \
    Dl_info self{};                                                                                                  \
    if (tvm::ffi::Function::GetGlobal(name).has_value()) return;                                                     \
    if (dladdr(reinterpret_cast<void*>(&TVMStitchCall_##LIBRARY), &self) == 0) return;                               \
    if (dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) return;                           \
    tvm::ffi::Function::SetGlobal(name, tvm::ffi::Function::FromPacked(CALL));                                       \
  }

#endif  // TVM_STITCH_COMPUTE_CUDA_DEVICE_H_
