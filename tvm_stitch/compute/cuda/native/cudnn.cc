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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tuned.h"

namespace {

using namespace tvm_stitch;

// -- what is used of the interface ----------------------------------------------------------------------------
// Numbers of enumerations as all versions of cuDNN 9 have them.

constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 9;  // cudnnDataType_t
constexpr int kCrossCorrelation = 1;                      // cudnnConvolutionMode_t

enum Kind {  // cudnnBackendDescriptorType_t
  kWindow = 1, kEngine = 2, kConfig = 3, kHeuristic = 4, kExecution = 5, kForward = 10, kWeightGradient = 11,
  kDataGradient = 12, kGraph = 15, kPack = 16, kTensor = 17
};

enum Type {  // cudnnBackendAttributeType_t
  kHandleType = 0, kDataType = 1, kInt64 = 3, kFloat = 4, kPointer = 6, kModeType = 7, kHeuristicMode = 8,
  kNoteType = 11, kDescriptor = 15
};

enum Attribute {  // cudnnBackendAttributeName_t
  kWindowCompute = 100, kWindowMode = 101, kWindowDilations = 102, kWindowStrides = 103, kWindowPaddingBehind = 104,
  kWindowPaddingBefore = 105, kWindowAxes = 106,
  kHeuristicAttribute = 200, kHeuristicGraph = 201, kHeuristicResults = 202,
  kConfigEngine = 300,
  kExecutionHandle = 400, kExecutionConfig = 401, kExecutionWorkspace = 402,
  kGraphHandle = 800, kGraphOperations = 801,
  kTensorAlignment = 900, kTensorType = 901, kTensorExtents = 902, kTensorStrides = 903, kTensorId = 906,
  kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003,
  kEngineNotes = 1303
};

constexpr int kByHeuristicA = 3, kByFallback = 2;  // cudnnBackendHeurMode_t

// An operation, and its attributes.
struct Operation {
  Kind kind;
  int alpha, beta, window, x, w, y;
};

constexpr Operation kForwardOf = {kForward, 700, 701, 702, 704, 703, 705};
constexpr Operation kDataGradientOf = {kDataGradient, 706, 707, 708, 710, 709, 711};
constexpr Operation kWeightGradientOf = {kWeightGradient, 712, 713, 714, 716, 715, 717};

enum Note {  // cudnnBackendNumericalNote_t
  kTensorCores = 0, kNarrowsInputs = 1, kNarrowSums = 2, kSpectral = 3, kVaries = 4, kWinograd = 5, kWinogradLast = 8
};

struct Library : Interface {
  static constexpr const char* kTitle = "cuDNN";
  static std::unique_ptr<Library> Open(const std::string& path);

  int (*set_stream)(Handle, void* stream);
  int (*descriptor_create)(int kind, Opaque*);
  int (*descriptor_destroy)(Opaque);
  int (*set)(Opaque, int attribute, int type, int64_t count, const void*);
  int (*get)(const void*, int attribute, int type, int64_t asked, int64_t* found, void*);
  int (*finalize)(Opaque);
  int (*execute)(Handle, Opaque execution, Opaque pack);
};

constexpr const char* kAdvice =
    "install nvidia-cudnn-cu13 (CUDA 13) or nvidia-cudnn-cu12 (CUDA 12), or name the library in TVM_STITCH_CUDNN";

std::unique_ptr<Library> Library::Open(const std::string& path) {
  void* file = OpenFile(kTitle, path, "TVM_STITCH_CUDNN", {"libcudnn.so.9"}, {"nvidia/cudnn/lib/"}, kAdvice);
  auto made = std::make_unique<Library>();
  Resolve(file, "cudnnCreate", &made->create);
  Resolve(file, "cudnnGetVersion", &made->version);
  Resolve(file, "cudnnGetErrorString", &made->status_text);
  Resolve(file, "cudnnSetStream", &made->set_stream);
  Resolve(file, "cudnnBackendCreateDescriptor", &made->descriptor_create);
  Resolve(file, "cudnnBackendDestroyDescriptor", &made->descriptor_destroy);
  Resolve(file, "cudnnBackendSetAttribute", &made->set);
  Resolve(file, "cudnnBackendGetAttribute", &made->get);
  Resolve(file, "cudnnBackendFinalize", &made->finalize);
  Resolve(file, "cudnnBackendExecute", &made->execute);
  return made;
}

constexpr auto TheLibrary = The<Library>;
constexpr auto Check = CheckStatus<Library>;

// One of the library's descriptors, destroyed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int kind) { Check(TheLibrary().descriptor_create(kind, &made_), "a descriptor"); }
  Descriptor(Descriptor&& other) noexcept : made_(std::exchange(other.made_, nullptr)) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (made_ != nullptr) TheLibrary().descriptor_destroy(made_);
  }

  Opaque get() const { return made_; }

  template <typename Value>
  Descriptor& Set(int attribute, int type, const Value* values, size_t count) {
    Check(TheLibrary().set(made_, attribute, type, static_cast<int64_t>(count), values), "describing a convolution");
    return *this;
  }
  template <typename Value>
  Descriptor& Set(int attribute, int type, const Value& value) {
    return Set(attribute, type, &value, 1);
  }
  Descriptor& Set(int attribute, const std::vector<int64_t>& values) {
    return Set(attribute, kInt64, values.data(), values.size());
  }
  Descriptor& Set(int attribute, const Descriptor& other) { return Set(attribute, kDescriptor, other.made_); }

  // Whether the library takes what was described.
  bool IsFinal() { return TheLibrary().finalize(made_) == 0; }
  void Finalize() { Check(TheLibrary().finalize(made_), "describing a convolution"); }

 private:
  Opaque made_ = nullptr;
};

// The library's handle of the current device, for one thread: it holds a stream.
Handle TheHandle(int device) {
  thread_local std::map<int, Handle> handles;  // never destroyed: at exit the driver may be gone
  return HandleOf<Library>(device, &handles);
}

// -- what is asked for ----------------------------------------------------------------------------------------
struct Mode {
  bool channels_last = false, tf32 = false, timed = false;
  Operation operation = kForwardOf;

  // Which of x, w and y is computed of the other two: of y that is its gradient, if it is not y.
  bool computes_x() const { return operation.kind == kDataGradient; }
  bool computes_w() const { return operation.kind == kWeightGradient; }
};

Mode ModeOf(std::string_view words) {
  Mode mode;
  bool has_layout = false;
  EachWord(words, [&](std::string_view word) {
    if (word == "channels_first" || word == "channels_last") {
      has_layout = true;
      mode.channels_last = word == "channels_last";
    } else if (word == "tf32") {
      mode.tf32 = true;
    } else if (word == "timed") {
      mode.timed = true;
    } else if (word == "weight_gradient") {
      mode.operation = kWeightGradientOf;
    } else if (word == "data_gradient") {
      mode.operation = kDataGradientOf;
    } else {
      TVM_FFI_THROW(ValueError) << "tvm_stitch: no mode of a convolution: " << word;
    }
  });
  if (!has_layout) TVM_FFI_THROW(ValueError) << "tvm_stitch: the mode of a convolution names no layout";
  return mode;
}

int TypeOf(DLDataType dtype) {
  return NumberOf(dtype, {kFloat32, kFloat16, kBFloat16}, "cuDNN's convolutions");
}

// The extents of a tensor with its channels second, at least two of them spatial, as cuDNN counts them.
std::vector<int64_t> Extents(const DLTensor& tensor, bool channels_last) {
  std::vector<int64_t> found(tensor.shape, tensor.shape + tensor.ndim);
  if (channels_last) std::rotate(found.begin() + 1, found.end() - 1, found.end());
  if (found.size() == 3) found.insert(found.begin() + 2, 1);
  return found;
}

std::vector<int64_t> Strides(const std::vector<int64_t>& extents, bool channels_last) {
  std::vector<int64_t> strides(extents.size(), 1);
  int64_t stride = channels_last ? extents[1] : 1;
  for (size_t i = extents.size(); i-- > 0;) {
    if (channels_last && i == 1) continue;
    strides[i] = stride;
    stride *= extents[i];
  }
  return strides;
}

// groups, and for each spatial axis the stride, the padding and the dilation
struct Window {
  int64_t groups = 1;
  std::vector<int64_t> stride, padding, dilation;
};

Window WindowOf(const ffi::Shape& numbers, int spatial) {
  if (static_cast<int>(numbers.size()) != 1 + 3 * spatial) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: a convolution of " << spatial << " axes has " << 1 + 3 * spatial
                              << " numbers";
  }
  Window found;
  size_t at = 0;
  found.groups = numbers[at++];
  for (auto* part : {&found.stride, &found.padding, &found.dilation}) {
    if (spatial == 1) part->push_back(part == &found.padding ? 0 : 1);
    for (int i = 0; i < spatial; ++i) part->push_back(numbers[at++]);
  }
  return found;
}

struct Shapes {
  std::vector<int64_t> x, w, y;
};

void CheckShapes(const Shapes& s, const Window& window) {
  bool fits = s.x[0] == s.y[0] && s.w[0] == s.y[1] && s.w[1] * window.groups == s.x[1];
  for (size_t i = 2; fits && i < s.x.size(); ++i) {
    int64_t stride = window.stride[i - 2], span = window.dilation[i - 2] * (s.w[i] - 1) + 1;
    int64_t padded = s.x[i] + 2 * window.padding[i - 2];
    fits = stride > 0 && padded >= span && (padded - span) / stride + 1 == s.y[i];
  }
  if (!fits) TVM_FFI_THROW(ValueError) << "tvm_stitch: the shapes of a convolution's operands do not fit its result";
}

struct Operands {
  DLTensor x, w, y, workspace;

  std::array<void*, 3> pointers() const { return {AddressOf(x), AddressOf(w), AddressOf(y)}; }
  void* scratch() const { return AddressOf(workspace); }
};

// -- plans: what the library executes, kept by everything that it depends on ----------------------------------
constexpr int64_t kMostConfigs = 64;   // of a heuristic
constexpr size_t kMostTimed = 8;       // that are timed
constexpr int64_t kIds[] = {'x', 'w', 'y'};
constexpr uint32_t kMostAlignment = 16;  // bytes; more is of no use to cuDNN

struct Plan {
  Descriptor execution;
  std::array<void*, 4> bound{};       // the pointers of the pack
  std::unique_ptr<Descriptor> pack;

  explicit Plan(Descriptor made) : execution(std::move(made)) {}

  // The same pointers come again and again where memory is planned.
  void Run(Handle handle, const Operands& given) {
    auto [x, w, y] = given.pointers();
    std::array<void*, 4> pointers = {x, w, y, given.scratch()};
    if (pack == nullptr || pointers != bound) {
      pack = std::make_unique<Descriptor>(kPack);
      pack->Set(kPackIds, kInt64, kIds, 3).Set(kPackPointers, kPointer, pointers.data(), 3);
      pack->Set(kPackWorkspace, kPointer, pointers[3]).Finalize();
      bound = pointers;
    }
    Check(TheLibrary().execute(handle, execution.get(), pack->get()), "a convolution");
  }
};

Descriptor MadeTensor(int64_t id, const std::vector<int64_t>& extents, bool channels_last, int dtype, void* address) {
  Descriptor made(kTensor);
  made.Set(kTensorType, kDataType, dtype).Set(kTensorExtents, extents);
  made.Set(kTensorStrides, Strides(extents, channels_last));
  int64_t alignment = AlignmentOf(address, kMostAlignment);
  made.Set(kTensorId, kInt64, id).Set(kTensorAlignment, kInt64, alignment).Finalize();
  return made;
}

// Whether an engine computes what it is asked for: with no less precision than the mode says, and always the same.
// Errors of transformed convolutions grow with the largest element near a result. The gradient of a weight sums over all
// places: that element is in every sum anyway.
bool IsAllowed(const Descriptor& config, int dtype, const Mode& mode) {
  const Library& library = TheLibrary();
  Descriptor engine(kEngine);
  Opaque its = engine.get();
  int64_t count = 0;
  if (library.get(config.get(), kConfigEngine, kDescriptor, 1, &count, &its) != 0) return false;
  int notes[32];
  if (library.get(its, kEngineNotes, kNoteType, 32, &count, notes) != 0) return false;
  return std::none_of(notes, notes + count, [&](int note) {
    if (note == kNarrowsInputs || note == kTensorCores) return dtype == kFloat32 && !(mode.tf32 && note == kTensorCores);
    if (note >= kWinograd && note <= kWinogradLast) return !mode.computes_w();
    return note == kNarrowSums || note == kSpectral || note == kVaries;
  });
}

// What can be executed, the best first by cuDNN's own judgement.
std::vector<Descriptor> Candidates(Handle handle, const Descriptor& graph, int dtype, const Mode& mode,
                                   int64_t workspace, size_t most) {
  const Library& library = TheLibrary();
  std::vector<Descriptor> found;
  for (int way : {kByHeuristicA, kByFallback}) {
    Descriptor heuristic(kHeuristic);
    heuristic.Set(kHeuristicGraph, graph).Set(kHeuristicAttribute, kHeuristicMode, way);
    if (!heuristic.IsFinal()) continue;
    std::vector<Descriptor> configs;
    std::vector<Opaque> raw;
    for (int64_t i = 0; i < kMostConfigs; ++i) raw.push_back(configs.emplace_back(kConfig).get());
    int64_t count = 0;
    if (library.get(heuristic.get(), kHeuristicResults, kDescriptor, kMostConfigs, &count, raw.data()) != 0) continue;
    for (int64_t i = 0; i < count && found.size() < most; ++i) {
      if (!IsAllowed(configs[i], dtype, mode)) continue;
      Descriptor execution(kExecution);
      execution.Set(kExecutionHandle, kHandleType, handle).Set(kExecutionConfig, configs[i]);
      int64_t needed = 0, one = 0;
      if (!execution.IsFinal()) continue;
      if (library.get(execution.get(), kExecutionWorkspace, kInt64, 1, &one, &needed) != 0) continue;
      if (needed <= workspace) found.push_back(std::move(execution));
    }
    if (!found.empty()) break;
  }
  return found;
}

std::unique_ptr<Plan> MadePlan(Handle handle, const Operands& given, const Shapes& shapes, const Window& window,
                               int dtype, const Mode& mode, const std::string& key, int device, void* stream) {
  auto [x, w, y] = given.pointers();
  Descriptor data = MadeTensor(kIds[0], shapes.x, mode.channels_last, dtype, x);
  Descriptor weight = MadeTensor(kIds[1], shapes.w, mode.channels_last, dtype, w);
  Descriptor out = MadeTensor(kIds[2], shapes.y, mode.channels_last, dtype, y);
  Descriptor windows(kWindow), graph(kGraph);
  windows.Set(kWindowCompute, kDataType, kFloat32).Set(kWindowMode, kModeType, kCrossCorrelation);
  windows.Set(kWindowAxes, kInt64, static_cast<int64_t>(window.stride.size()));
  windows.Set(kWindowPaddingBefore, window.padding).Set(kWindowPaddingBehind, window.padding);
  windows.Set(kWindowStrides, window.stride).Set(kWindowDilations, window.dilation).Finalize();
  const Operation& its = mode.operation;
  Descriptor operation(its.kind);
  operation.Set(its.alpha, kFloat, 1.0f).Set(its.beta, kFloat, 0.0f).Set(its.window, windows);
  operation.Set(its.x, data).Set(its.w, weight).Set(its.y, out).Finalize();
  graph.Set(kGraphHandle, kHandleType, handle).Set(kGraphOperations, operation).Finalize();
  bool capturing = IsCapturing(stream);
  Choices& choices = ChoicesOf("cudnn", TheLibrary().version(), device);
  int64_t kept = mode.timed ? choices.Find(key, -1) : 0;
  bool measures = kept < 0 && !capturing;
  size_t most = measures ? kMostTimed : std::max<int64_t>(kept, 0) + 1;
  auto found = Candidates(handle, graph, dtype, mode, SizeOf(given.workspace), most);
  if (found.empty()) {
    TVM_FFI_THROW(RuntimeError) << "tvm_stitch: cuDNN has no algorithm for a convolution with "
                                << SizeOf(given.workspace)
                                << " bytes of workspace (StitchConfig(compute=\"tvm\") avoids it)";
  }
  if (!measures) return std::make_unique<Plan>(std::move(found.size() == most ? found.back() : found[0]));
  std::vector<std::unique_ptr<Plan>> plans;
  for (Descriptor& each : found) plans.push_back(std::make_unique<Plan>(std::move(each)));
  StreamTimer timer(stream, given.workspace);
  size_t fastest = Fastest(plans.size(), [&](size_t i, int calls) {
    return timer.Measure(calls, [&] {
      plans[i]->Run(handle, given);
      return true;
    });
  });
  choices.Keep(key, static_cast<int64_t>(fastest));
  return std::move(plans[fastest]);
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
  Shapes shapes = {Extents(given.x, mode.channels_last), Extents(given.w, mode.channels_last),
                   Extents(given.y, mode.channels_last)};
  const DLTensor& result = mode.computes_x() ? given.x : mode.computes_w() ? given.w : given.y;
  if (SizeOf(result) == 0) return;
  CheckShapes(shapes, window);
  DLDevice device = result.device;
  OnDevice current(device.device_id);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  if (SizeOf(given.x) == 0 || SizeOf(given.w) == 0 || SizeOf(given.y) == 0) return FillWithZeros(result, stream);
  std::vector<int64_t> key = {dtype, spatial, mode.channels_last, mode.tf32, mode.timed, mode.operation.kind};
  key.push_back(SizeOf(given.workspace));
  for (void* pointer : given.pointers()) key.push_back(AlignmentOf(pointer, kMostAlignment));
  for (const auto* part : {&shapes.x, &shapes.w, &shapes.y}) key.insert(key.end(), part->begin(), part->end());
  key.insert(key.end(), numbers.begin(), numbers.end());
  thread_local std::map<int, std::map<std::vector<int64_t>, std::unique_ptr<Plan>>> plans_of_devices;
  auto& plans = plans_of_devices[device.device_id];
  Handle handle = TheHandle(device.device_id);
  Check(TheLibrary().set_stream(handle, stream), "taking a stream");
  auto found = plans.find(key);
  if (found == plans.end()) {
    auto plan = MadePlan(handle, given, shapes, window, dtype, mode, KeyOf(key), device.device_id, stream);
    if (plans.size() >= kMostPlans) plans.clear();
    found = plans.emplace(std::move(key), std::move(plan)).first;
  }
  found->second->Run(handle, given);
}

// convolution(data, weight, numbers, mode, out, workspace), or the gradients of one, with these words in the mode:
// weight_gradient: convolution(data, gradient of the result, numbers, mode, out, workspace)
// data_gradient: convolution(gradient of the result, weight, numbers, mode, out, workspace)
void Convolution(ffi::PackedArgs args, ffi::Any*) {
  if (args.size() != 6) TVM_FFI_THROW(TypeError) << "tvm_stitch: a convolution has 6 arguments";
  Operands given{};
  auto numbers = args[2].cast<ffi::Shape>();
  auto words = args[3].cast<ffi::String>();
  Mode mode = ModeOf(std::string_view(words.data(), words.size()));
  DLTensor first = *args[0].cast<DLTensor*>(), second = *args[1].cast<DLTensor*>(), out = *args[4].cast<DLTensor*>();
  given.x = mode.computes_x() ? out : first;
  given.w = mode.computes_w() ? out : second;
  given.y = mode.computes_x() ? first : mode.computes_w() ? second : out;
  given.workspace = *args[5].cast<DLTensor*>();
  Compute(given, numbers, mode);
}

}  // namespace

TVM_STITCH_EXPORT(cudnn, convolution, Convolution)
