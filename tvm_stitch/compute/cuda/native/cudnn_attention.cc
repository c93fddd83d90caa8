// SPDX-License-Identifier: Apache-2.0
// Attention of half types by cuDNN, or by a kernel of the caller where that is faster or cuDNN does not take it: a
// function of a TVM module, linked into the library of each model that calls it.
//
// The graph is the one that cuDNN's engines of fused attention recognise: product, scale, mask, softmax, product. Its
// intermediate values are virtual: no score is stored. Nothing is allocated on a device: the caller passes workspace.
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cudnn.h"
#include "tuned.h"

namespace {

using namespace tvm_stitch;

// -- what is asked for ----------------------------------------------------------------------------------------
struct Mode {
  bool causal = false, masked = false, timed = false;
  float scale = 1.0f;
  int64_t fewest_keys = 0;  // of attention that is not timed and is left to cuDNN
};

Mode ModeOf(std::string_view words) {
  Mode mode;
  EachWord(words, [&](std::string_view word) {
    size_t sign = word.find('=');
    std::string name(word.substr(0, sign));
    std::string value(sign == std::string_view::npos ? "" : word.substr(sign + 1));
    char* end = nullptr;
    if (word == "causal") {
      mode.causal = true;
    } else if (word == "masked") {
      mode.masked = true;
    } else if (word == "timed") {
      mode.timed = true;
    } else if (name == "scale" && !value.empty()) {
      mode.scale = std::strtof(value.c_str(), &end);
    } else if (name == "fewest_keys" && !value.empty()) {
      mode.fewest_keys = std::strtoll(value.c_str(), &end, 10);
    } else {
      TVM_FFI_THROW(ValueError) << "tvm_stitch: no mode of attention: " << word;
    }
    if (end != nullptr && *end != 0) TVM_FFI_THROW(ValueError) << "tvm_stitch: no number in a mode: " << word;
  });
  return mode;
}

// Where the rows of an operand lie, in elements. The elements of a row are adjacent.
struct Rows {
  int64_t offset, batch, head, row;
};

struct Layout {
  int64_t batches, heads, key_heads, queries, keys, size, offset;
  Rows q, k, v, out, mask;
};

constexpr size_t kSizes = 7, kOfRows = 4;

Layout LayoutOf(const ffi::Shape& numbers, bool masked) {
  size_t wanted = kSizes + kOfRows * (masked ? 5 : 4);
  if (numbers.size() != wanted) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: attention has " << wanted << " numbers, not " << numbers.size();
  }
  Layout found{};
  size_t at = 0;
  for (int64_t* number : {&found.batches, &found.heads, &found.key_heads, &found.queries, &found.keys, &found.size,
                          &found.offset}) {
    *number = numbers[at++];
  }
  for (Rows* rows : {&found.q, &found.k, &found.v, &found.out, &found.mask}) {
    if (rows == &found.mask && !masked) break;
    for (int64_t* number : {&rows->offset, &rows->batch, &rows->head, &rows->row}) *number = numbers[at++];
  }
  return found;
}

struct Call {
  DLTensor q, k, v, mask, out, workspace;
  Mode mode;
  Layout layout;
  int dtype = 0, mask_dtype = 0;
  std::vector<ffi::AnyView> of_kernel;  // its arguments
  std::optional<ffi::Function> kernel;

  std::array<char*, 5> pointers() const {
    auto first = [](const DLTensor& tensor, const Rows& rows) {
      return AddressOf(tensor) + rows.offset * tensor.dtype.bits / 8;
    };
    const Layout& l = layout;
    return {first(q, l.q), first(k, l.k), first(v, l.v), first(out, l.out), mode.masked ? first(mask, l.mask) : nullptr};
  }

  void RunKernel() const {
    ffi::Any result;
    kernel->CallPacked(of_kernel.data(), static_cast<int32_t>(of_kernel.size()), &result);
  }
};

void CheckInside(const DLTensor& tensor, const Rows& rows, int64_t heads, int64_t count, int64_t elements,
                 const Layout& layout, const char* name) {
  if (count < 1) return;
  bool is_negative = rows.offset < 0 || rows.batch < 0 || rows.head < 0 || rows.row < 0;
  int64_t last = rows.offset + (layout.batches - 1) * rows.batch + (heads - 1) * rows.head + (count - 1) * rows.row;
  if (is_negative || last + elements > SizeOf(tensor)) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: " << name << " of attention has " << SizeOf(tensor)
                              << " elements, its layout needs " << last + elements;
  }
}

void CheckCall(const Call& call) {
  const Layout& l = call.layout;
  if (l.key_heads < 1 || l.heads % l.key_heads != 0) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: " << l.heads << " heads of queries do not share " << l.key_heads
                              << " heads of keys evenly";
  }
  CheckInside(call.q, l.q, l.heads, l.queries, l.size, l, "q");
  CheckInside(call.k, l.k, l.key_heads, l.keys, l.size, l, "k");
  CheckInside(call.v, l.v, l.key_heads, l.keys, l.size, l, "v");
  CheckInside(call.out, l.out, l.heads, l.queries, l.size, l, "the result");
  if (call.mode.masked) CheckInside(call.mask, l.mask, l.heads, l.queries, l.keys, l, "the mask");
}

// -- the graph ------------------------------------------------------------------------------------------------
constexpr int kAdd = 0, kMultiply = 1, kDivide = 6, kSubtract = 9, kExponential = 13, kLogarithm = 15,
              kAtLeast = 303, kIndex = 501, kSelect = 601;  // cudnnPointwiseMode_t
constexpr int kSum = 0, kMaximum = 3;                       // cudnnReduceTensorOp_t
constexpr int64_t kAlignment = 16;                          // bytes, of all rows: the engines rely on it

// The numbers that a graph takes by value, from the host.
struct Values {
  float scale, hidden;
  int32_t keys, queries, shift;
};

enum Id : int64_t { kQ = 1, kK, kV, kOut, kMask, kScale, kHidden, kKeys, kQueries, kShift, kFirstVirtual };

class Graph {
 public:
  using Extents = std::vector<int64_t>;

  explicit Graph(const Call& call) : call_(call), its_(call.layout) {}

  // The graph of attention, finalized. Throws an error if the library does not take it.
  Descriptor Made(Handle handle) {
    const Layout& l = its_;
    Descriptor& q = Stored(kQ, call_.dtype, {l.batches, l.heads, l.queries, l.size}, l.q, false);
    Descriptor& k = Stored(kK, call_.dtype, {l.batches, l.key_heads, l.size, l.keys}, l.k, true);
    Descriptor& v = Stored(kV, call_.dtype, {l.batches, l.key_heads, l.keys, l.size}, l.v, false);
    Descriptor& out = Stored(kOut, call_.dtype, {l.batches, l.heads, l.queries, l.size}, l.out, false);
    Descriptor* scores = &Product(q, k, Scores(kFloat32));
    scores = &Elementwise(kMultiply, kFloat32, Scores(kFloat32), scores, &ByValue(kScale, kFloat32));
    if (call_.mode.masked) {
      scores = &Elementwise(kAdd, kFloat32, Scores(kFloat32), scores, &Mask());
    }
    if (call_.mode.causal) scores = &Causal(scores);
    Descriptor& largest = Reduced(kMaximum, *scores);
    Descriptor& below = Elementwise(kSubtract, kFloat32, Scores(kFloat32), scores, &largest);
    Descriptor& powers = Elementwise(kExponential, kFloat32, Scores(kFloat32), &below);
    Descriptor& sum = Reduced(kSum, powers);
    // Engines know a softmax by its statistics as well, which nothing reads here.
    Descriptor& logarithm = Elementwise(kLogarithm, kFloat32, OfRows(), &sum);
    Elementwise(kAdd, kFloat32, OfRows(), &largest, &logarithm);
    Descriptor& weights = Elementwise(kDivide, kFloat32, Scores(call_.dtype), &powers, &sum);
    Product(weights, v, out);
    return GraphOf(handle, operations_);
  }

  // The tensors that execution binds pointers to.
  const std::vector<int64_t>& ids() const { return ids_; }

 private:
  Descriptor& Tensor(int64_t id, int dtype, const Extents& extents, const Extents& strides,
                     int64_t alignment = kAlignment) {
    Descriptor& made = tensors_.emplace_back(kTensor);
    made.Set(kTensorType, kDataType, dtype).Set(kTensorExtents, extents).Set(kTensorStrides, strides);
    made.Set(kTensorId, kInt64, id).Set(kTensorAlignment, kInt64, alignment);
    return made;
  }

  Descriptor& Stored(Id id, int dtype, const Extents& extents, const Rows& rows, bool transposed,
                     int64_t alignment = kAlignment) {
    Extents strides = {rows.batch, rows.head, rows.row, 1};
    if (transposed) std::swap(strides[2], strides[3]);
    ids_.push_back(id);
    Descriptor& made = Tensor(id, dtype, extents, strides, alignment);
    made.Finalize();
    return made;
  }

  // Extents along which the mask does not advance are 1. Its rows begin anywhere.
  Descriptor& Mask() {
    const Rows& rows = its_.mask;
    Extents extents = {rows.batch == 0 ? 1 : its_.batches, rows.head == 0 ? 1 : its_.heads,
                       rows.row == 0 ? 1 : its_.queries, its_.keys};
    int64_t row = extents[2] == 1 ? its_.keys : rows.row;
    int64_t head = extents[1] == 1 ? row * extents[2] : rows.head;
    int64_t batch = extents[0] == 1 ? head * extents[1] : rows.batch;
    int64_t bytes = call_.mask_dtype == kFloat32 ? 4 : 2;
    auto places = reinterpret_cast<uintptr_t>(call_.pointers()[kMask - kQ]) | batch * bytes | head * bytes | row * bytes;
    int64_t alignment = AlignmentOf(reinterpret_cast<void*>(places), kAlignment);
    return Stored(kMask, call_.mask_dtype, extents, {0, batch, head, row}, false, alignment);
  }

  Descriptor& ByValue(Id id, int dtype) {
    ids_.push_back(id);
    Descriptor& made = Tensor(id, dtype, {1, 1, 1, 1}, {1, 1, 1, 1});
    made.Set(kTensorIsByValue, kBoolean, true).Finalize();
    return made;
  }

  Descriptor& Virtual(int dtype, const Extents& extents) {
    Extents strides(4, 1);
    for (size_t i = 3; i-- > 0;) strides[i] = strides[i + 1] * extents[i + 1];
    Descriptor& made = Tensor(next_++, dtype, extents, strides);
    made.Set(kTensorIsVirtual, kBoolean, true).Finalize();
    return made;
  }

  Descriptor& Scores(int dtype) { return Virtual(dtype, {its_.batches, its_.heads, its_.queries, its_.keys}); }
  Descriptor& OfRows() { return Virtual(kFloat32, {its_.batches, its_.heads, its_.queries, 1}); }

  Descriptor& Product(const Descriptor& a, const Descriptor& b, Descriptor& c) {
    Descriptor config(kProduct);
    config.Set(kProductCompute, kDataType, kFloat32).Finalize();
    Descriptor& made = operations_.emplace_back(kProductOf);
    made.Set(kProductA, a).Set(kProductB, b).Set(kProductC, c).Set(kProductConfig, config).Finalize();
    configs_.push_back(std::move(config));
    return c;
  }

  Descriptor& Elementwise(int op, int compute, Descriptor& y, const Descriptor* x, const Descriptor* b = nullptr,
                          const Descriptor* t = nullptr, int64_t axis = -1) {
    Descriptor config(kElementwise);
    config.Set(kElementwiseOperator, kElementwiseMode, op).Set(kElementwiseCompute, kDataType, compute);
    if (axis >= 0) config.Set(kElementwiseAxis, kInt64, axis);
    config.Finalize();
    Descriptor& made = operations_.emplace_back(kElementwiseOf);
    made.Set(kElementwiseConfig, config).Set(kElementwiseX, *x).Set(kElementwiseY, y);
    if (b != nullptr) made.Set(kElementwiseB, *b);
    if (t != nullptr) made.Set(kElementwiseT, *t);
    made.Finalize();
    configs_.push_back(std::move(config));
    return y;
  }

  Descriptor& Reduced(int op, const Descriptor& x) {
    Descriptor config(kReduction);
    config.Set(kReductionOperator, kReductionMode, op).Set(kReductionCompute, kDataType, kFloat32).Finalize();
    Descriptor& y = OfRows();
    Descriptor& made = operations_.emplace_back(kReductionOf);
    made.Set(kReductionX, x).Set(kReductionY, y).Set(kReductionConfig, config).Finalize();
    configs_.push_back(std::move(config));
    return y;
  }

  // Row i sees the columns up to i + offset. Engines know the diagonals of the first corner and of the last one.
  Descriptor& Causal(Descriptor* scores) {
    Descriptor* rows = &Elementwise(kIndex, kFloat32, Scores(kInt32), scores, nullptr, nullptr, 2);
    Descriptor& columns = Elementwise(kIndex, kFloat32, Scores(kInt32), scores, nullptr, nullptr, 3);
    if (its_.offset != 0 && its_.offset == its_.keys - its_.queries) {
      rows = &Elementwise(kAdd, kInt32, Scores(kInt32), rows, &ByValue(kKeys, kInt32));
      rows = &Elementwise(kSubtract, kInt32, Scores(kInt32), rows, &ByValue(kQueries, kInt32));
    } else if (its_.offset != 0) {
      rows = &Elementwise(kAdd, kInt32, Scores(kInt32), rows, &ByValue(kShift, kInt32));
    }
    Descriptor& seen = Elementwise(kAtLeast, kTruth, Scores(kTruth), rows, &columns);
    return Elementwise(kSelect, kFloat32, Scores(kFloat32), scores, &ByValue(kHidden, kFloat32), &seen);
  }

  const Call& call_;
  const Layout& its_;
  int64_t next_ = kFirstVirtual;
  std::deque<Descriptor> tensors_;
  std::deque<Descriptor> operations_, configs_;
  std::vector<int64_t> ids_;
};

// -- plans ----------------------------------------------------------------------------------------------------
constexpr size_t kMostTimed = 2;              // of cuDNN's: each is compiled, which takes half a second
constexpr size_t kFirstWithInfinity = 91000;  // version of cuDNN that takes it as the value of hidden scores

// What computes one attention: cuDNN, or the caller's kernel if ``execution`` is empty.
struct Plan {
  std::optional<Descriptor> execution;
  std::vector<int64_t> ids;
  Values values{};
  std::vector<void*> bound;
  std::unique_ptr<Descriptor> pack;

  // The library's status.
  int Run(Handle handle, const Call& call) {
    if (!execution.has_value()) {
      call.RunKernel();
      return 0;
    }
    auto stored = call.pointers();
    std::vector<void*> pointers;
    for (int64_t id : ids) {
      switch (id) {
        case kScale: pointers.push_back(&values.scale); break;
        case kHidden: pointers.push_back(&values.hidden); break;
        case kKeys: pointers.push_back(&values.keys); break;
        case kQueries: pointers.push_back(&values.queries); break;
        case kShift: pointers.push_back(&values.shift); break;
        default: pointers.push_back(stored[id - kQ]);
      }
    }
    pointers.push_back(AddressOf(call.workspace));
    if (pack == nullptr || pointers != bound) {
      pack = std::make_unique<Descriptor>(kPack);
      pack->Set(kPackIds, kInt64, ids.data(), ids.size());
      pack->Set(kPackPointers, kPointer, pointers.data(), ids.size());
      pack->Set(kPackWorkspace, kPointer, pointers.back()).Finalize();
      bound = pointers;
    }
    return TheLibrary().execute(handle, execution->get(), pack->get());
  }
};

// The diagonal of a causal mask that hides nothing is no mask. The library's interface takes no mask of the last corner
// for more queries than keys, nor with another mask.
bool IsTaken(const Call& call) {
  const Layout& l = call.layout;
  if (call.dtype == kFloat32) return false;
  if (call.mode.causal && (l.offset < 0 || (l.offset != 0 && (call.mode.masked || l.queries > l.keys)))) return false;
  auto pointers = call.pointers();
  return std::all_of(pointers.begin(), pointers.begin() + 4,
                     [](const char* pointer) { return AlignmentOf(pointer, kAlignment) == kAlignment; });
}

// What cuDNN can execute; empty if it does not take this attention, or is not there.
std::vector<std::unique_ptr<Plan>> Executions(Handle handle, const Call& call, size_t most) {
  Graph graph(call);
  Descriptor made = graph.Made(handle);
  auto allows = [](const std::vector<int>& notes) {
    return std::none_of(notes.begin(), notes.end(),
                        [](int note) { return note == kNarrowSums || note == kSpectral || note == kVaries; });
  };
  std::vector<std::unique_ptr<Plan>> plans;
  float hidden = TheLibrary().version() < kFirstWithInfinity ? std::numeric_limits<float>::lowest()
                                                             : -std::numeric_limits<float>::infinity();
  const Layout& l = call.layout;
  for (Descriptor& each : Candidates(handle, made, allows, SizeOf(call.workspace), most)) {
    auto plan = std::make_unique<Plan>();
    plan->execution.emplace(std::move(each));
    plan->ids = graph.ids();
    plan->values = {call.mode.scale, hidden, static_cast<int32_t>(l.keys), static_cast<int32_t>(l.queries),
                    static_cast<int32_t>(l.offset)};
    plans.push_back(std::move(plan));
  }
  return plans;
}

// Which of the plans is the fastest: the caller's kernel is the first one, and needs no library.
std::unique_ptr<Plan> MadePlan(Handle handle, const Call& call, const std::string& key, int device, void* stream) {
  Choices& choices = ChoicesOf("cudnn-attention", TheLibrary().version(), device);
  int64_t kept = call.mode.timed ? choices.Find(key, -1) : call.layout.keys >= call.mode.fewest_keys;
  if (kept == 0) return std::make_unique<Plan>();
  auto found = Executions(handle, call, kept < 0 ? kMostTimed : kept);
  if (found.empty()) return std::make_unique<Plan>();
  if (kept > 0) return std::move(static_cast<int64_t>(found.size()) == kept ? found.back() : found[0]);
  found.insert(found.begin(), std::make_unique<Plan>());
  StreamTimer timer(stream, call.out);
  size_t fastest = Fastest(found.size(), [&](size_t i, int calls) {
    return timer.Measure(calls, [&] { return found[i]->Run(handle, call) == 0; });
  });
  choices.Keep(key, static_cast<int64_t>(fastest));
  return std::move(found[fastest]);
}

std::vector<int64_t> KeyOfCall(const Call& call, const ffi::Shape& numbers) {
  int32_t scale = 0;
  std::memcpy(&scale, &call.mode.scale, sizeof scale);
  std::vector<int64_t> key = {call.dtype, call.mask_dtype, call.mode.causal, call.mode.masked, call.mode.timed, scale,
                              SizeOf(call.workspace)};
  for (char* pointer : call.pointers()) key.push_back(AlignmentOf(pointer, kAlignment));
  key.insert(key.end(), numbers.begin(), numbers.end());
  return key;
}

// -- the attention --------------------------------------------------------------------------------------------
void Compute(Call& call, const ffi::Shape& numbers) {
  if (SizeOf(call.out) == 0) return;
  CheckCall(call);
  DLDevice device = call.out.device;
  if (device.device_type != kDLCUDA || call.layout.keys < 1 || !IsTaken(call)) return call.RunKernel();
  if (call.mode.causal && call.layout.offset >= call.layout.keys - 1) call.mode.causal = false;
  std::vector<int64_t> key = KeyOfCall(call, numbers);
  thread_local std::map<int, std::map<std::vector<int64_t>, std::unique_ptr<Plan>>> plans_of_devices;
  thread_local std::map<int, Handle> handles;  // of devices on which there is one
  auto& plans = plans_of_devices[device.device_id];
  OnDevice current(device.device_id);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  auto found = plans.find(key);
  if (found == plans.end()) {
    if (IsCapturing(stream)) return call.RunKernel();  // a plan's code is loaded, which a capture may not allow
    std::unique_ptr<Plan> plan;
    try {
      handles[device.device_id] = TheHandle(device.device_id);
      Check(TheLibrary().set_stream(handles[device.device_id], stream), "taking a stream");
      plan = MadePlan(handles[device.device_id], call, KeyOf(key), device.device_id, stream);
    } catch (const ffi::Error&) {
      plan = std::make_unique<Plan>();  // cuDNN is not there, or does not take this: the kernel does
    }
    if (plans.size() >= kMostPlans) plans.clear();
    found = plans.emplace(std::move(key), std::move(plan)).first;
  }
  Plan& plan = *found->second;
  if (!plan.execution.has_value()) return call.RunKernel();
  Handle handle = handles.at(device.device_id);
  Check(TheLibrary().set_stream(handle, stream), "taking a stream");
  Check(plan.Run(handle, call), "attention");
}

// attention(q, k, v, mask if there is one, kernel, numbers of the kernel, numbers, mode, out, workspace)
//
// The kernel takes q, k, v, the mask, its numbers and out. The numbers: batches, heads, heads of keys, queries, keys,
// elements of a head, the offset of the last key that a query sees; and for q, k, v, out and the mask the offset of the
// first row and the distances of batches, heads and rows, in elements. The mode consists of words: causal, masked, timed,
// scale=(number), fewest_keys=(number).
void Attention(ffi::PackedArgs args, ffi::Any*) {
  if (args.size() != 9 && args.size() != 10) {
    TVM_FFI_THROW(TypeError) << "tvm_stitch: attention has 9 arguments, or 10 with a mask";
  }
  int inputs = args.size() - 6, last = args.size() - 2;
  Call call;
  auto words = args[inputs + 3].cast<ffi::String>();
  call.mode = ModeOf(std::string_view(words.data(), words.size()));
  if (call.mode.masked != (inputs == 4)) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: the mode of attention names other operands";
  }
  auto numbers = args[inputs + 2].cast<ffi::Shape>();
  call.layout = LayoutOf(numbers, call.mode.masked);
  call.q = *args[0].cast<DLTensor*>();
  call.k = *args[1].cast<DLTensor*>();
  call.v = *args[2].cast<DLTensor*>();
  call.out = *args[last].cast<DLTensor*>();
  call.workspace = *args[last + 1].cast<DLTensor*>();
  auto type_of = [](const DLTensor& tensor) {
    return NumberOf(tensor.dtype, {kFloat32, kFloat16, kBFloat16}, "operands of attention");
  };
  call.dtype = type_of(call.q);
  if (type_of(call.k) != call.dtype || type_of(call.v) != call.dtype || type_of(call.out) != call.dtype) {
    TVM_FFI_THROW(TypeError) << "tvm_stitch: q, k, v and the result of attention have one dtype";
  }
  if (call.mode.masked) {
    call.mask = *args[3].cast<DLTensor*>();
    call.mask_dtype = type_of(call.mask);
  }
  call.kernel = args[inputs].cast<ffi::Function>();
  auto of_kernel = args[inputs + 1].cast<ffi::Shape>();
  for (int i = 0; i < inputs; ++i) call.of_kernel.push_back(args[i]);
  for (int64_t number : of_kernel) call.of_kernel.push_back(number);
  call.of_kernel.push_back(args[last]);
  Compute(call, numbers);
}

}  // namespace

TVM_STITCH_EXPORT(cudnn_attention, attention, Attention)
