// SPDX-License-Identifier: Apache-2.0
// Convolutions by cuDNN, as functions of a TVM module: linked into the library of each model that calls them.
//
// Nothing is allocated on a device: the caller passes workspace.
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cudnn.h"
#include "tuned.h"

namespace {

using namespace tvm_stitch;

// An operation, and its attributes.
struct Operation {
  Kind kind;
  int alpha, beta, window, x, w, y;
};

constexpr Operation kForwardOf = {kForward, 700, 701, 702, 704, 703, 705};
constexpr Operation kDataGradientOf = {kDataGradient, 706, 707, 708, 710, 709, 711};
constexpr Operation kWeightGradientOf = {kWeightGradient, 712, 713, 714, 716, 715, 717};

// -- what is asked for ----------------------------------------------------------------------------------------
struct Mode {
  bool channels_last = false, tf32 = false, timed = false;
  bool bias = false, residual = false, relu = false;  // what follows the convolution, in this graph
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
    } else if (word == "bias") {
      mode.bias = true;
    } else if (word == "residual") {
      mode.residual = true;
    } else if (word == "relu") {
      mode.relu = true;
    } else if (word == "weight_gradient") {
      mode.operation = kWeightGradientOf;
    } else if (word == "data_gradient") {
      mode.operation = kDataGradientOf;
    } else {
      TVM_FFI_THROW(ValueError) << "tvm_stitch: no mode of a convolution: " << word;
    }
  });
  if (!has_layout) TVM_FFI_THROW(ValueError) << "tvm_stitch: the mode of a convolution names no layout";
  if ((mode.residual || mode.relu) && !mode.bias) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: a convolution with a residual or ReLU has a bias";
  }
  if (mode.bias && mode.operation.kind != kForward) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: a gradient of a convolution has no bias";
  }
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
  std::vector<DLTensor> more;  // the bias, the residual

  // Of x, w, y, then of ``more``.
  std::vector<void*> pointers() const {
    std::vector<void*> found = {AddressOf(x), AddressOf(w), AddressOf(y)};
    for (const DLTensor& each : more) found.push_back(AddressOf(each));
    return found;
  }
  void* scratch() const { return AddressOf(workspace); }
};

// The bias has an element for each channel, the residual one for each of the result.
void CheckMore(const Operands& given, const Shapes& s, int dtype) {
  for (size_t i = 0; i < given.more.size(); ++i) {
    const DLTensor& each = given.more[i];
    if (TypeOf(each.dtype) != dtype || SizeOf(each) != (i == 0 ? s.y[1] : SizeOf(given.y))) {
      TVM_FFI_THROW(ValueError) << "tvm_stitch: the " << (i == 0 ? "bias" : "residual")
                                << " of a convolution does not fit its result";
    }
  }
}

// -- plans: what the library executes, kept by everything that it depends on ----------------------------------
constexpr size_t kMostTimed = 8;       // that are timed
constexpr int64_t kIds[] = {'x', 'w', 'y', 'b', 'r'}, kFirstVirtual = 1000;
constexpr int kAdd = 0, kRelu = 100, kNansPropagate = 1;  // cudnnPointwiseMode_t, cudnnNanPropagation_t
constexpr uint32_t kMostAlignment = 16;  // bytes; more is of no use to cuDNN

struct Plan {
  Descriptor execution;
  std::vector<void*> bound;  // the pointers of the pack
  std::unique_ptr<Descriptor> pack;

  explicit Plan(Descriptor made) : execution(std::move(made)) {}

  // The same pointers come again and again where memory is planned.
  void Run(Handle handle, const Operands& given) {
    std::vector<void*> pointers = given.pointers();
    size_t count = pointers.size();
    pointers.push_back(given.scratch());
    if (pack == nullptr || pointers != bound) {
      pack = std::make_unique<Descriptor>(kPack);
      pack->Set(kPackIds, kInt64, kIds, count).Set(kPackPointers, kPointer, pointers.data(), count);
      pack->Set(kPackWorkspace, kPointer, pointers[count]).Finalize();
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
  made.Set(kTensorId, kInt64, id).Set(kTensorAlignment, kInt64, alignment);
  if (id >= kFirstVirtual) made.Set(kTensorIsVirtual, kBoolean, true);
  made.Finalize();
  return made;
}

// The operators of a graph, in order.
class Operations {
 public:
  explicit Operations(const Operands& given, const Shapes& shapes, int dtype, const Mode& mode)
      : pointers_(given.pointers()), shapes_(shapes), mode_(mode), dtype_(dtype) {}

  Descriptor Graph(Handle handle, const Window& window) {
    Descriptor& data = Stored(0, shapes_.x);
    Descriptor& weight = Stored(1, shapes_.w);
    Descriptor& out = Stored(2, shapes_.y);
    Convolution(window, data, weight, mode_.bias ? Virtual() : out);
    if (mode_.residual) Elementwise(kAdd, Virtual(), &Stored(4, shapes_.y));
    std::vector<int64_t> channels(shapes_.y.size(), 1);
    channels[1] = shapes_.y[1];
    if (mode_.bias) Elementwise(kAdd, mode_.relu ? Virtual() : out, &Stored(3, channels));
    if (mode_.relu) Elementwise(kRelu, out, nullptr);
    return GraphOf(handle, operations_);
  }

 private:
  Descriptor& Stored(size_t at, const std::vector<int64_t>& extents) {
    return kept_.emplace_back(MadeTensor(kIds[at], extents, mode_.channels_last, dtype_, pointers_[at]));
  }

  // A result that only the next operator reads; it is not rounded.
  Descriptor& Virtual() {
    int64_t id = kFirstVirtual + static_cast<int64_t>(kept_.size());
    return kept_.emplace_back(MadeTensor(id, shapes_.y, mode_.channels_last, kFloat32, nullptr));
  }

  void Convolution(const Window& window, const Descriptor& data, const Descriptor& weight, Descriptor& out) {
    Descriptor& windows = kept_.emplace_back(kWindow);
    windows.Set(kWindowCompute, kDataType, kFloat32).Set(kWindowMode, kModeType, kCrossCorrelation);
    windows.Set(kWindowAxes, kInt64, static_cast<int64_t>(window.stride.size()));
    windows.Set(kWindowPaddingBefore, window.padding).Set(kWindowPaddingBehind, window.padding);
    windows.Set(kWindowStrides, window.stride).Set(kWindowDilations, window.dilation).Finalize();
    const Operation& its = mode_.operation;
    Descriptor& made = operations_.emplace_back(its.kind);
    made.Set(its.alpha, kFloat, 1.0f).Set(its.beta, kFloat, 0.0f).Set(its.window, windows);
    made.Set(its.x, data).Set(its.w, weight).Set(its.y, out).Finalize();
    last_ = &out;
  }

  void Elementwise(int op, Descriptor& out, const Descriptor* other) {
    Descriptor& config = kept_.emplace_back(kElementwise);
    config.Set(kElementwiseOperator, kElementwiseMode, op).Set(kElementwiseCompute, kDataType, kFloat32);
    if (op == kRelu) config.Set(kElementwiseNans, kNansType, kNansPropagate);
    config.Finalize();
    Descriptor& made = operations_.emplace_back(kElementwiseOf);
    made.Set(kElementwiseConfig, config).Set(kElementwiseX, *last_).Set(kElementwiseY, out);
    if (other != nullptr) made.Set(kElementwiseB, *other);
    made.Finalize();
    last_ = &out;
  }

  std::vector<void*> pointers_;
  const Shapes& shapes_;
  const Mode& mode_;
  int dtype_;
  std::deque<Descriptor> kept_, operations_;
  Descriptor* last_ = nullptr;
};

// Whether an engine with these numerical notes computes what it is asked for: with no less precision than the mode says,
// and always the same.
// Errors of transformed convolutions grow with the largest element near a result. The gradient of a weight sums over all
// places: that element is in every sum anyway.
bool IsAllowed(const std::vector<int>& notes, int dtype, const Mode& mode) {
  return std::none_of(notes.begin(), notes.end(), [&](int note) {
    if (note == kNarrowsInputs || note == kTensorCores) return dtype == kFloat32 && !(mode.tf32 && note == kTensorCores);
    if (note >= kWinograd && note <= kWinogradLast) return !mode.computes_w();
    return note == kNarrowSums || note == kSpectral || note == kVaries;
  });
}

std::unique_ptr<Plan> MadePlan(Handle handle, const Operands& given, const Shapes& shapes, const Window& window,
                               int dtype, const Mode& mode, const std::string& key, int device, void* stream) {
  Descriptor graph = Operations(given, shapes, dtype, mode).Graph(handle, window);
  bool capturing = IsCapturing(stream);
  Choices& choices = ChoicesOf("cudnn", TheLibrary().version(), device);
  int64_t kept = mode.timed ? choices.Find(key, -1) : 0;
  bool measures = kept < 0 && !capturing;
  size_t most = measures ? kMostTimed : std::max<int64_t>(kept, 0) + 1;
  auto allows = [&](const std::vector<int>& notes) { return IsAllowed(notes, dtype, mode); };
  auto found = Candidates(handle, graph, allows, SizeOf(given.workspace), most);
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
  CheckMore(given, shapes, dtype);
  DLDevice device = result.device;
  OnDevice current(device.device_id);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  if (SizeOf(given.x) == 0 || SizeOf(given.w) == 0 || SizeOf(given.y) == 0) {
    if (mode.bias) TVM_FFI_THROW(ValueError) << "tvm_stitch: a convolution with a bias has operands with elements";
    return FillWithZeros(result, stream);
  }
  std::vector<int64_t> key = {dtype, spatial, mode.channels_last, mode.tf32, mode.timed, mode.operation.kind};
  if (mode.bias) key.insert(key.end(), {'b', mode.residual, mode.relu});
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

// convolution(data, weight, bias and residual if there are any, numbers, mode, out, workspace), or the gradients of one,
// with these words in the mode:
// weight_gradient: convolution(data, gradient of the result, numbers, mode, out, workspace)
// data_gradient: convolution(gradient of the result, weight, numbers, mode, out, workspace)
void Convolution(ffi::PackedArgs args, ffi::Any*) {
  if (args.size() < 6 || args.size() > 8) {
    TVM_FFI_THROW(TypeError) << "tvm_stitch: a convolution has 6 arguments, and at most a bias and a residual";
  }
  Operands given{};
  int last = args.size() - 4;
  auto numbers = args[last].cast<ffi::Shape>();
  auto words = args[last + 1].cast<ffi::String>();
  Mode mode = ModeOf(std::string_view(words.data(), words.size()));
  if (last != 2 + mode.bias + mode.residual) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: the mode of a convolution names other operands";
  }
  DLTensor first = *args[0].cast<DLTensor*>(), second = *args[1].cast<DLTensor*>();
  DLTensor out = *args[last + 2].cast<DLTensor*>();
  for (int i = 2; i < last; ++i) given.more.push_back(*args[i].cast<DLTensor*>());
  given.x = mode.computes_x() ? out : first;
  given.w = mode.computes_w() ? out : second;
  given.y = mode.computes_x() ? first : mode.computes_w() ? second : out;
  given.workspace = *args[last + 3].cast<DLTensor*>();
  Compute(given, numbers, mode);
}

}  // namespace

TVM_STITCH_EXPORT(cudnn, convolution, Convolution)
