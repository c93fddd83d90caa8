// SPDX-License-Identifier: Apache-2.0
// The part of cuDNN's graph interface that this package calls.
//
// All of it is declared here: what includes it compiles where cuDNN is not installed.
#ifndef TVM_STITCH_COMPUTE_CUDA_CUDNN_H_
#define TVM_STITCH_COMPUTE_CUDA_CUDNN_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace tvm_stitch {
namespace {

// Numbers of enumerations as all versions of cuDNN 9 have them.

constexpr int kFloat32 = 0, kFloat16 = 2, kInt32 = 4, kBFloat16 = 9, kTruth = 11;  // cudnnDataType_t
constexpr int kCrossCorrelation = 1;                                               // cudnnConvolutionMode_t

enum Kind {  // cudnnBackendDescriptorType_t
  kElementwise = 0, kWindow = 1, kEngine = 2, kConfig = 3, kHeuristic = 4, kExecution = 5, kForward = 10,
  kWeightGradient = 11, kDataGradient = 12, kElementwiseOf = 13, kGraph = 15, kPack = 16, kTensor = 17, kProduct = 18,
  kProductOf = 19, kReduction = 21, kReductionOf = 22
};

enum Type {  // cudnnBackendAttributeType_t
  kHandleType = 0, kDataType = 1, kBoolean = 2, kInt64 = 3, kFloat = 4, kPointer = 6, kModeType = 7,
  kHeuristicMode = 8, kNansType = 10, kNoteType = 11, kElementwiseMode = 14, kDescriptor = 15, kReductionMode = 18
};

enum Attribute {  // cudnnBackendAttributeName_t
  kElementwiseOperator = 0, kElementwiseCompute = 1, kElementwiseNans = 2, kElementwiseAxis = 9,
  kWindowCompute = 100, kWindowMode = 101, kWindowDilations = 102, kWindowStrides = 103, kWindowPaddingBehind = 104,
  kWindowPaddingBefore = 105, kWindowAxes = 106,
  kHeuristicAttribute = 200, kHeuristicGraph = 201, kHeuristicResults = 202,
  kConfigEngine = 300,
  kExecutionHandle = 400, kExecutionConfig = 401, kExecutionWorkspace = 402,
  kElementwiseConfig = 750, kElementwiseX = 751, kElementwiseB = 752, kElementwiseY = 753, kElementwiseT = 758,
  kGraphHandle = 800, kGraphOperations = 801,
  kTensorAlignment = 900, kTensorType = 901, kTensorExtents = 902, kTensorStrides = 903, kTensorId = 906,
  kTensorIsVirtual = 907, kTensorIsByValue = 908,
  kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kProductCompute = 1500, kProductA = 1520, kProductB = 1521, kProductC = 1522, kProductConfig = 1523,
  kReductionOperator = 1600, kReductionCompute = 1601, kReductionX = 1610, kReductionY = 1611, kReductionConfig = 1612
};

constexpr int kByHeuristicA = 3, kByFallback = 2;  // cudnnBackendHeurMode_t

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

inline std::unique_ptr<Library> Library::Open(const std::string& path) {
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
    Check(TheLibrary().set(made_, attribute, type, static_cast<int64_t>(count), values), "describing a graph");
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
  void Finalize() { Check(TheLibrary().finalize(made_), "describing a graph"); }

 private:
  Opaque made_ = nullptr;
};

// The graph of some operations.
inline Descriptor GraphOf(Handle handle, const std::deque<Descriptor>& operations) {
  std::vector<Opaque> raw;
  for (const Descriptor& each : operations) raw.push_back(each.get());
  Descriptor graph(kGraph);
  graph.Set(kGraphHandle, kHandleType, handle).Set(kGraphOperations, kDescriptor, raw.data(), raw.size());
  graph.Finalize();
  return graph;
}

// The library's handle of the current device, for one thread: it holds a stream.
inline Handle TheHandle(int device) {
  thread_local std::map<int, Handle> handles;  // never destroyed: at exit the driver may be gone
  return HandleOf<Library>(device, &handles);
}

constexpr int64_t kMostConfigs = 64;  // of a heuristic

// The numerical notes of a configuration's engine, if the library gives them.
inline std::optional<std::vector<int>> NotesOf(const Descriptor& config) {
  const Library& library = TheLibrary();
  Descriptor engine(kEngine);
  Opaque its = engine.get();
  int64_t count = 0;
  if (library.get(config.get(), kConfigEngine, kDescriptor, 1, &count, &its) != 0) return std::nullopt;
  std::vector<int> notes(32);
  if (library.get(its, kEngineNotes, kNoteType, 32, &count, notes.data()) != 0) return std::nullopt;
  notes.resize(count);
  return notes;
}

// What can be executed, the best first by cuDNN's own judgement.
//
// ``allows(notes)`` says whether engines with these numerical notes may compute. ``most`` is the largest number of
// results, and ``workspace`` the most bytes that one may need.
template <typename Allows>
std::vector<Descriptor> Candidates(Handle handle, const Descriptor& graph, Allows allows, int64_t workspace,
                                   size_t most) {
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
      auto notes = NotesOf(configs[i]);
      if (!notes.has_value() || !allows(*notes)) continue;
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

}  // namespace
}  // namespace tvm_stitch

#endif  // TVM_STITCH_COMPUTE_CUDA_CUDNN_H_
