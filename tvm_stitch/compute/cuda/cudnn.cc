// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, as functions of a TVM module: linked into the library of each model that calls them.
//
// What this file uses of cuDNN's interface is declared here: it compiles where cuDNN is not installed. Nothing is
// allocated on a device: the caller passes workspace.
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device.h"

namespace {

using namespace tvm_stitch;

// -- what is used of the interface ----------------------------------------------------------------------------
// Numbers of enumerations and the layout of one structure, as cuDNN 8 and 9 have them.

constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 9;            // cudnnDataType_t
constexpr int kNCHW = 0, kNHWC = 1;                                 // cudnnTensorFormat_t
constexpr int kCrossCorrelation = 1;                                // cudnnConvolutionMode_t
constexpr int kDefaultMath = 0, kTensorOpMath = 1, kFMAMath = 3;    // cudnnMathType_t
constexpr int kFFT = 4, kFFTTiling = 5;                             // cudnnConvolutionFwdAlgo_t

struct Measured {  // cudnnConvolutionFwdAlgoPerf_t
  int algorithm;
  int status;
  float milliseconds;
  size_t workspace;
  int determinism;
  int math;
  int reserved[3];
};

using Handle = void*;
using Opaque = void*;

struct Library {
  int (*create)(Handle*);
  size_t (*version)();
  const char* (*status_text)(int);
  int (*set_stream)(Handle, void* stream);
  int (*tensor_create)(Opaque*);
  int (*tensor_set)(Opaque, int dtype, int rank, const int* extents, const int* strides);
  int (*tensor_destroy)(Opaque);
  int (*filter_create)(Opaque*);
  int (*filter_set)(Opaque, int dtype, int format, int rank, const int* extents);
  int (*filter_destroy)(Opaque);
  int (*desc_create)(Opaque*);
  int (*desc_set)(Opaque, int rank, const int* padding, const int* stride, const int* dilation, int mode, int compute);
  int (*desc_groups)(Opaque, int groups);
  int (*desc_math)(Opaque, int math);
  int (*desc_destroy)(Opaque);
  int (*heuristic)(Handle, Opaque x, Opaque w, Opaque desc, Opaque y, int asked, int* found, Measured*);
  int (*measure)(Handle, Opaque x, const void*, Opaque w, const void*, Opaque desc, Opaque y, void*, int asked,
                 int* found, Measured*, void* workspace, size_t workspace_bytes);
  int (*convolve)(Handle, const void* alpha, Opaque x, const void*, Opaque w, const void*, Opaque desc, int algorithm,
                  void* workspace, size_t workspace_bytes, const void* beta, Opaque y, void*);
};

constexpr const char* kVariable = "TVM_STITCH_CUDNN";
constexpr const char* kAdvice =
    "install nvidia-cudnn-cu13 (CUDA 13) or nvidia-cudnn-cu12 (CUDA 12), or name the library in TVM_STITCH_CUDNN";

std::mutex opening;
const Library* opened = nullptr;

// cuDNN, opened once: from a path, or from where it may lie if that is empty.
const Library& OpenLibrary(const std::string& path) {
  std::lock_guard<std::mutex> lock(opening);
  if (opened != nullptr) return *opened;
  void* file = OpenFile("cuDNN", path, kVariable, {"libcudnn.so.9"}, {"nvidia/cudnn/lib/"}, kAdvice);
  auto made = std::make_unique<Library>();
  Resolve(file, "cudnnCreate", &made->create);
  Resolve(file, "cudnnGetVersion", &made->version);
  Resolve(file, "cudnnGetErrorString", &made->status_text);
  Resolve(file, "cudnnSetStream", &made->set_stream);
  Resolve(file, "cudnnCreateTensorDescriptor", &made->tensor_create);
  Resolve(file, "cudnnSetTensorNdDescriptor", &made->tensor_set);
  Resolve(file, "cudnnDestroyTensorDescriptor", &made->tensor_destroy);
  Resolve(file, "cudnnCreateFilterDescriptor", &made->filter_create);
  Resolve(file, "cudnnSetFilterNdDescriptor", &made->filter_set);
  Resolve(file, "cudnnDestroyFilterDescriptor", &made->filter_destroy);
  Resolve(file, "cudnnCreateConvolutionDescriptor", &made->desc_create);
  Resolve(file, "cudnnSetConvolutionNdDescriptor", &made->desc_set);
  Resolve(file, "cudnnSetConvolutionGroupCount", &made->desc_groups);
  Resolve(file, "cudnnSetConvolutionMathType", &made->desc_math);
  Resolve(file, "cudnnDestroyConvolutionDescriptor", &made->desc_destroy);
  Resolve(file, "cudnnGetConvolutionForwardAlgorithm_v7", &made->heuristic);
  Resolve(file, "cudnnFindConvolutionForwardAlgorithmEx", &made->measure);
  Resolve(file, "cudnnConvolutionForward", &made->convolve);
  opened = made.release();
  return *opened;
}

const Library& TheLibrary() {
  static const Library& library = OpenLibrary("");
  return library;
}

void Check(int status, const char* step) {
  if (status == 0) return;
  TVM_FFI_THROW(RuntimeError) << "tvm_stitch: cuDNN, " << step << ": " << TheLibrary().status_text(status);
}

// The library's handle of the current device, for one thread: it holds a stream.
Handle HandleOf(int device) {
  thread_local std::map<int, Handle> handles;  // never destroyed: at exit the driver may be gone
  auto found = handles.find(device);
  if (found != handles.end()) return found->second;
  Handle made = nullptr;
  Check(TheLibrary().create(&made), "creating a handle");
  handles[device] = made;
  return made;
}

// -- what is asked for ----------------------------------------------------------------------------------------
struct Mode {
  bool channels_last = false, tf32 = false, timed = false;
};

Mode ModeOf(std::string_view words) {
  Mode mode;
  bool has_layout = false;
  while (!words.empty()) {
    std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word == "channels_first" || word == "channels_last") {
      has_layout = true;
      mode.channels_last = word == "channels_last";
    } else if (word == "tf32") {
      mode.tf32 = true;
    } else if (word == "timed") {
      mode.timed = true;
    } else {
      TVM_FFI_THROW(ValueError) << "tvm_stitch: no mode of a convolution: " << word;
    }
  }
  if (!has_layout) TVM_FFI_THROW(ValueError) << "tvm_stitch: the mode of a convolution names no layout";
  return mode;
}

int TypeOf(DLDataType dtype) {
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 32) return kFloat32;
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 16) return kFloat16;
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return kBFloat16;
  TVM_FFI_THROW(TypeError) << "tvm_stitch: cuDNN's convolutions are of float32, float16 or bfloat16";
  return 0;
}

// The extents of a tensor with its channels second, at least two of them spatial, as cuDNN counts them.
std::vector<int> Extents(const DLTensor& tensor, bool channels_last) {
  std::vector<int> found;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] > INT32_MAX) TVM_FFI_THROW(ValueError) << "tvm_stitch: an extent of " << tensor.shape[i];
    found.push_back(static_cast<int>(tensor.shape[i]));
  }
  if (channels_last) std::rotate(found.begin() + 1, found.end() - 1, found.end());
  if (found.size() == 3) found.insert(found.begin() + 2, 1);
  return found;
}

std::vector<int> Strides(const std::vector<int>& extents, bool channels_last) {
  std::vector<int> strides(extents.size());
  int64_t stride = channels_last ? extents[1] : 1;
  for (size_t i = extents.size() - 1; i + 1 > 0; --i) {
    if (channels_last && i == 1) continue;
    strides[i] = static_cast<int>(stride);
    stride *= extents[i];
    if (stride > INT32_MAX) TVM_FFI_THROW(ValueError) << "tvm_stitch: a tensor of " << stride << " elements";
    if (i == 0) break;
  }
  if (channels_last) strides[1] = 1;
  return strides;
}

// -- plans: descriptors and an algorithm, kept by everything that they depend on ------------------------------
struct Plan {
  Opaque x = nullptr, w = nullptr, y = nullptr, desc = nullptr;
  int algorithm = 0;
  size_t workspace = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    const Library& library = TheLibrary();
    if (x != nullptr) library.tensor_destroy(x);
    if (w != nullptr) library.filter_destroy(w);
    if (y != nullptr) library.tensor_destroy(y);
    if (desc != nullptr) library.desc_destroy(desc);
  }
};

constexpr size_t kMostPlans = 4096;  // of a thread, before it starts anew: symbolic shapes may be endless
constexpr int kMostAlgorithms = 16;

// groups, and for each spatial axis the stride, the padding and the dilation
struct Window {
  int groups = 1;
  std::vector<int> stride, padding, dilation;
};

Window WindowOf(const ffi::Shape& numbers, int spatial) {
  if (static_cast<int>(numbers.size()) != 1 + 3 * spatial) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: a convolution of " << spatial << " axes has " << 1 + 3 * spatial
                              << " numbers";
  }
  Window found;
  size_t at = 0;
  found.groups = static_cast<int>(numbers[at++]);
  for (auto* part : {&found.stride, &found.padding, &found.dilation}) {
    if (spatial == 1) part->push_back(part == &found.padding ? 0 : 1);
    for (int i = 0; i < spatial; ++i) part->push_back(static_cast<int>(numbers[at++]));
  }
  return found;
}

struct Operands {
  DLTensor x, w, y, workspace;
};

void CheckShapes(const std::vector<int>& x, const std::vector<int>& w, const std::vector<int>& y, const Window& window) {
  bool fits = x[0] == y[0] && w[0] == y[1] && w[1] * window.groups == x[1];
  for (size_t i = 2; i < x.size(); ++i) {
    int64_t padded = x[i] + 2 * int64_t{window.padding[i - 2]};
    int64_t span = int64_t{window.dilation[i - 2]} * (w[i] - 1) + 1;
    fits = fits && padded >= span && (padded - span) / window.stride[i - 2] + 1 == y[i];
  }
  if (!fits) TVM_FFI_THROW(ValueError) << "tvm_stitch: the shapes of a convolution's operands do not fit its result";
}

void Choose(Plan* plan, Handle handle, const Operands& given, const Mode& mode, bool exact, bool capturing,
            size_t workspace) {
  const Library& library = TheLibrary();
  std::array<Measured, kMostAlgorithms> found{};
  int count = 0;
  if (mode.timed && !capturing) {
    Check(library.measure(handle, plan->x, AddressOf(given.x), plan->w, AddressOf(given.w), plan->desc, plan->y,
                          AddressOf(given.y), kMostAlgorithms, &count, found.data(), AddressOf(given.workspace),
                          workspace),
          "timing algorithms");
  } else {
    Check(library.heuristic(handle, plan->x, plan->w, plan->desc, plan->y, kMostAlgorithms, &count, found.data()),
          "choosing an algorithm");
  }
  for (const Measured* at = found.data(); at != found.data() + count; ++at) {
    bool spectral = at->algorithm == kFFT || at->algorithm == kFFTTiling;  // errors grow with the largest element
    bool rounds = exact && at->math != kFMAMath && at->math != kDefaultMath;
    if (at->status != 0 || at->workspace > workspace || spectral || rounds) continue;
    plan->algorithm = at->algorithm;
    plan->workspace = at->workspace;
    if (!exact) Check(library.desc_math(plan->desc, at->math), "an algorithm");
    return;
  }
  TVM_FFI_THROW(RuntimeError) << "tvm_stitch: cuDNN has no algorithm for a convolution with " << workspace
                              << " bytes of workspace (StitchConfig(compute=\"tvm\") avoids it)";
}

std::unique_ptr<Plan> MadePlan(const std::vector<int>& x, const std::vector<int>& w, const std::vector<int>& y,
                               const Window& window, int dtype, const Mode& mode, bool exact) {
  const Library& library = TheLibrary();
  auto plan = std::make_unique<Plan>();
  int rank = static_cast<int>(x.size());
  Check(library.tensor_create(&plan->x), "describing data");
  Check(library.tensor_set(plan->x, dtype, rank, x.data(), Strides(x, mode.channels_last).data()), "describing data");
  Check(library.filter_create(&plan->w), "describing a weight");
  Check(library.filter_set(plan->w, dtype, mode.channels_last ? kNHWC : kNCHW, rank, w.data()), "describing a weight");
  Check(library.tensor_create(&plan->y), "describing a result");
  Check(library.tensor_set(plan->y, dtype, rank, y.data(), Strides(y, mode.channels_last).data()),
        "describing a result");
  Check(library.desc_create(&plan->desc), "a descriptor");
  Check(library.desc_set(plan->desc, rank - 2, window.padding.data(), window.stride.data(), window.dilation.data(),
                         kCrossCorrelation, kFloat32),
        "describing windows");
  Check(library.desc_groups(plan->desc, window.groups), "describing groups");
  Check(library.desc_math(plan->desc, exact ? kFMAMath : dtype == kFloat32 ? kDefaultMath : kTensorOpMath),
        "describing precision");
  return plan;
}

// -- the convolution ------------------------------------------------------------------------------------------
void Compute(const Operands& given, const ffi::Shape& numbers, const Mode& mode) {
  int dtype = TypeOf(given.x.dtype), spatial = given.x.ndim - 2;
  if (TypeOf(given.w.dtype) != dtype || TypeOf(given.y.dtype) != dtype) {
    TVM_FFI_THROW(TypeError) << "tvm_stitch: data, weight and result of a convolution have one dtype";
  }
  if (spatial < 1 || spatial > 3 || given.w.ndim != given.x.ndim || given.y.ndim != given.x.ndim) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: a convolution has one to three spatial axes";
  }
  Window window = WindowOf(numbers, spatial);
  std::vector<int> x = Extents(given.x, mode.channels_last), w = Extents(given.w, mode.channels_last),
                   y = Extents(given.y, mode.channels_last);
  if (SizeOf(given.y) == 0) return;
  CheckShapes(x, w, y, window);
  DLDevice device = given.y.device;
  OnDevice current(device.device_id);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  if (SizeOf(given.x) == 0) {
    size_t bytes = static_cast<size_t>(SizeOf(given.y)) * given.y.dtype.bits / 8;
    CheckDriver(TheDriver().fill(reinterpret_cast<uint64_t>(AddressOf(given.y)), 0, bytes, stream), "filling with zeros");
    return;
  }
  auto workspace = static_cast<size_t>(SizeOf(given.workspace));
  std::vector<int64_t> key = {dtype, spatial, mode.channels_last, mode.tf32, mode.timed, device.device_id};
  key.push_back(static_cast<int64_t>(workspace));
  for (const auto* part : {&x, &w, &y}) key.insert(key.end(), part->begin(), part->end());
  key.insert(key.end(), numbers.begin(), numbers.end());
  thread_local std::map<std::vector<int64_t>, std::unique_ptr<Plan>> plans;
  Handle handle = HandleOf(device.device_id);
  Check(TheLibrary().set_stream(handle, stream), "taking a stream");
  auto found = plans.find(key);
  if (found == plans.end()) {
    bool exact = dtype == kFloat32 && !mode.tf32;
    auto plan = MadePlan(x, w, y, window, dtype, mode, exact);
    int capturing = 0;
    CheckDriver(TheDriver().is_capturing(stream, &capturing), "asking a stream");
    Choose(plan.get(), handle, given, mode, exact, capturing != 0, workspace);
    if (plans.size() >= kMostPlans) plans.clear();
    found = plans.emplace(std::move(key), std::move(plan)).first;
  }
  const Plan& plan = *found->second;
  float alpha = 1, beta = 0;
  Check(TheLibrary().convolve(handle, &alpha, plan.x, AddressOf(given.x), plan.w, AddressOf(given.w), plan.desc,
                              plan.algorithm, AddressOf(given.workspace), plan.workspace, &beta, plan.y,
                              AddressOf(given.y)),
        "a convolution");
}

// convolution(data, weight, numbers, mode, out, workspace)
void Convolution(ffi::PackedArgs args, ffi::Any*) {
  if (args.size() != 6) TVM_FFI_THROW(TypeError) << "tvm_stitch: a convolution has 6 arguments";
  Operands given{};
  given.x = *args[0].cast<DLTensor*>();
  given.w = *args[1].cast<DLTensor*>();
  auto numbers = args[2].cast<ffi::Shape>();
  auto words = args[3].cast<ffi::String>();
  given.y = *args[4].cast<DLTensor*>();
  given.workspace = *args[5].cast<DLTensor*>();
  Compute(given, numbers, ModeOf(std::string_view(words.data(), words.size())));
}

}  // namespace

TVM_STITCH_EXPORT(cudnn, convolution, Convolution)
