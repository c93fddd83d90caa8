// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt, as functions of a TVM module: linked into the library of each model that calls them.
//
// cuBLASLt and the CUDA driver are opened when they are first needed, and what this file uses of their interfaces is
// declared here: it compiles where neither is installed. Nothing is allocated on a device: the caller passes workspace.
// A process may have any number of models that bring these functions, each with a copy of its own.
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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tuned.h"

namespace {

using namespace tvm_stitch;

// -- what is used of the two interfaces -----------------------------------------------------------------------
// Numbers of enumerations and the layout of one structure, as both CUDA 12 and CUDA 13 have them.

constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14;           // cudaDataType
constexpr int kCompute32F = 68, kCompute32FFastTF32 = 77;           // cublasComputeType_t
constexpr int32_t kAsStored = 0, kTransposed = 1;                   // cublasOperation_t
constexpr int kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7;  // cublasLtMatmulDescAttributes_t
constexpr int kDescBiasPointer = 8;
constexpr int kLayoutBatchCount = 5, kLayoutBatchStride = 6;               // cublasLtMatrixLayoutAttribute_t
constexpr int kPreferenceWorkspace = 1, kPreferenceReductions = 3;         // cublasLtMatmulPreferenceAttributes_t
constexpr int kPreferenceAlignmentA = 5;                                   // B, C and D follow
constexpr uint32_t kReduceInPlace = 1, kReduceWide = 2, kReduceNarrow = 4;  // cublasLtReductionScheme_t
constexpr uint32_t kEpilogueNone = 1, kEpilogueReLU = 2, kEpilogueBias = 4;  // cublasLtEpilogue_t

struct Algorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};

struct Found {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

struct Library : Interface {
  static constexpr const char* kTitle = "cuBLASLt";
  static std::unique_ptr<Library> Open(const std::string& path);

  int (*matmul)(Handle, Opaque desc, const void* alpha, const void* a, Opaque a_layout, const void* b, Opaque b_layout,
                const void* beta, const void* c, Opaque c_layout, void* d, Opaque d_layout, const Algorithm*,
                void* workspace, size_t workspace_bytes, void* stream);
  int (*heuristic)(Handle, Opaque desc, Opaque a, Opaque b, Opaque c, Opaque d, Opaque preference, int asked, Found*,
                   int* found);
  int (*desc_create)(Opaque*, int compute, int scale);
  int (*desc_set)(Opaque, int attribute, const void*, size_t);
  int (*desc_destroy)(Opaque);
  int (*layout_create)(Opaque*, int dtype, uint64_t rows, uint64_t columns, int64_t line);
  int (*layout_set)(Opaque, int attribute, const void*, size_t);
  int (*layout_destroy)(Opaque);
  int (*preference_create)(Opaque*);
  int (*preference_set)(Opaque, int attribute, const void*, size_t);
  int (*preference_destroy)(Opaque);
};

constexpr const char* kAdvice =
    "install nvidia-cublas (CUDA 13) or nvidia-cublas-cu12 (CUDA 12), or name the library in TVM_STITCH_CUBLASLT";

std::unique_ptr<Library> Library::Open(const std::string& path) {
  void* file = OpenFile(kTitle, path, "TVM_STITCH_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12"},
                        {"nvidia/cu13/lib/", "nvidia/cublas/lib/"}, kAdvice);
  auto made = std::make_unique<Library>();
  Resolve(file, "cublasLtCreate", &made->create);
  Resolve(file, "cublasLtGetVersion", &made->version);
  Resolve(file, "cublasLtGetStatusString", &made->status_text);
  Resolve(file, "cublasLtMatmul", &made->matmul);
  Resolve(file, "cublasLtMatmulAlgoGetHeuristic", &made->heuristic);
  Resolve(file, "cublasLtMatmulDescCreate", &made->desc_create);
  Resolve(file, "cublasLtMatmulDescSetAttribute", &made->desc_set);
  Resolve(file, "cublasLtMatmulDescDestroy", &made->desc_destroy);
  Resolve(file, "cublasLtMatrixLayoutCreate", &made->layout_create);
  Resolve(file, "cublasLtMatrixLayoutSetAttribute", &made->layout_set);
  Resolve(file, "cublasLtMatrixLayoutDestroy", &made->layout_destroy);
  Resolve(file, "cublasLtMatmulPreferenceCreate", &made->preference_create);
  Resolve(file, "cublasLtMatmulPreferenceSetAttribute", &made->preference_set);
  Resolve(file, "cublasLtMatmulPreferenceDestroy", &made->preference_destroy);
  return made;
}

constexpr auto TheLibrary = The<Library>;
constexpr auto Check = CheckStatus<Library>;

// The library's handle of the current device; it takes calls from several threads.
Handle TheHandle(int device) {
  static std::mutex lock;
  static std::map<int, Handle> handles;  // never destroyed: at exit the driver may be gone
  std::lock_guard<std::mutex> guard(lock);
  return HandleOf<Library>(device, &handles);
}

// -- what is asked for ----------------------------------------------------------------------------------------
enum Flag : int64_t {
  kLeftTransposed = 1, kRightTransposed = 2, kBias = 4, kReLU = 8, kResidual = 16, kTF32 = 32, kTimed = 64
};

int64_t FlagsOf(std::string_view mode) {
  static constexpr std::pair<std::string_view, int64_t> words[] = {
      {"left_transposed", kLeftTransposed}, {"right_transposed", kRightTransposed}, {"bias", kBias},
      {"relu", kReLU},                      {"residual", kResidual},                {"tf32", kTF32},           {"timed", kTimed}};
  int64_t flags = 0;
  EachWord(mode, [&](std::string_view word) {
    auto same = [&](const auto& known) { return known.first == word; };
    auto found = std::find_if(std::begin(words), std::end(words), same);
    if (found == std::end(words)) TVM_FFI_THROW(ValueError) << "tvm_stitch: no mode of a product: " << word;
    flags |= found->second;
  });
  return flags;
}

// The product's numbers, in the order in which Relax passes them.
struct Layout {
  int64_t rows, columns, depth, batch, left_line, right_line, out_line, left_batch, right_batch, out_batch;
};
constexpr size_t kNumbers = sizeof(Layout) / sizeof(int64_t);

int TypeOf(DLDataType dtype) {
  return NumberOf(dtype, {kFloat32, kFloat16, kBFloat16}, "cuBLASLt products");
}

// A matrix per item of the batch must lie within its tensor: wrong numbers are an error, not a wild access.
void CheckWithin(const char* name, const DLTensor& tensor, int64_t rows, int64_t columns, int64_t line, int64_t batch,
                 int64_t stride) {
  int64_t end = (rows - 1) * line + columns + (batch - 1) * stride;
  if (line < 0 || stride < 0 || end > SizeOf(tensor)) {
    TVM_FFI_THROW(ValueError) << "tvm_stitch: the " << name << " of a product has " << SizeOf(tensor)
                              << " elements, its layout needs " << end;
  }
}

// -- plans: descriptors and an algorithm, kept by everything that they depend on ------------------------------
struct Plan {
  Opaque desc = nullptr, preference = nullptr;
  std::array<Opaque, 4> layouts{};  // of A, B, C and D
  Algorithm algorithm{};
  size_t workspace = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    const Library& library = TheLibrary();
    for (Opaque layout : layouts) {
      if (layout != nullptr) library.layout_destroy(layout);
    }
    if (preference != nullptr) library.preference_destroy(preference);
    if (desc != nullptr) library.desc_destroy(desc);
  }
};

using Key = std::array<int64_t, kNumbers + 6>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t number : key) hash = (hash ^ static_cast<uint64_t>(number)) * 1099511628211ull;
    return hash ^ (hash >> 32);
  }
};

constexpr int kMostTimed = 8;               // algorithms of a product that are timed
constexpr uint32_t kAlignmentThatPays = 256;  // bytes
constexpr uintptr_t kWorkspaceAlignment = 256;

Opaque MadeLayout(int dtype, int64_t rows, int64_t columns, int64_t line, int64_t batch, int64_t stride) {
  const Library& library = TheLibrary();
  Opaque made = nullptr;
  Check(library.layout_create(&made, dtype, rows, columns, std::max(line, rows)), "describing a matrix");
  if (batch > 1) {
    auto count = static_cast<int32_t>(batch);
    int status = library.layout_set(made, kLayoutBatchCount, &count, sizeof count);
    if (status == 0) status = library.layout_set(made, kLayoutBatchStride, &stride, sizeof stride);
    if (status != 0) library.layout_destroy(made);
    Check(status, "describing a batch");
  }
  return made;
}

// The library's matrices are column-major, so a row-major D = L R is computed as D' = R' L'.
void Describe(Plan* plan, const Layout& x, int64_t flags, int in, int out) {
  const Library& library = TheLibrary();
  bool lt = flags & kLeftTransposed, rt = flags & kRightTransposed;
  Check(library.desc_create(&plan->desc, flags & kTF32 ? kCompute32FFastTF32 : kCompute32F, kFloat32), "a descriptor");
  auto set = [&](int attribute, auto value) {
    Check(library.desc_set(plan->desc, attribute, &value, sizeof value), "describing a product");
  };
  set(kDescTransA, rt ? kTransposed : kAsStored);
  set(kDescTransB, lt ? kTransposed : kAsStored);
  uint32_t epilogue = (flags & kReLU ? kEpilogueReLU : 0) | (flags & kBias ? kEpilogueBias : 0);
  set(kDescEpilogue, epilogue == 0 ? kEpilogueNone : epilogue);
  auto layout = [&](int dtype, bool turned, int64_t rows, int64_t columns, int64_t line, int64_t stride) {
    if (turned) std::swap(rows, columns);
    return MadeLayout(dtype, rows, columns, line, x.batch, stride);
  };
  plan->layouts[0] = layout(in, rt, x.columns, x.depth, x.right_line, x.right_batch);
  plan->layouts[1] = layout(in, lt, x.depth, x.rows, x.left_line, x.left_batch);
  plan->layouts[2] = layout(out, false, x.columns, x.rows, x.out_line, x.out_batch);
  plan->layouts[3] = layout(out, false, x.columns, x.rows, x.out_line, x.out_batch);
}

// The algorithms that there are, the best first by the library's own judgement.
std::vector<Found> Candidates(Plan* plan, Handle handle, const Layout& x, const std::array<uint32_t, 4>& alignments,
                              size_t workspace, int in, int most) {
  const Library& library = TheLibrary();
  Check(library.preference_create(&plan->preference), "a preference");
  auto prefer = [&](int attribute, auto value) {
    Check(library.preference_set(plan->preference, attribute, &value, sizeof value), "a preference");
  };
  prefer(kPreferenceWorkspace, static_cast<uint64_t>(workspace));
  // Parts of a sum are added in float32, never rounded to a half type between.
  prefer(kPreferenceReductions, in == kFloat32 ? kReduceInPlace | kReduceWide | kReduceNarrow : kReduceWide);
  for (int i = 0; i < 4; ++i) prefer(kPreferenceAlignmentA + i, alignments[i]);
  std::vector<Found> found(most);
  int count = 0;
  const auto& l = plan->layouts;
  int status =
      library.heuristic(handle, plan->desc, l[0], l[1], l[2], l[3], plan->preference, most, found.data(), &count);
  if (status != 0 || count == 0) {
    TVM_FFI_THROW(RuntimeError) << "tvm_stitch: cuBLASLt has no algorithm for a product of " << x.rows << " x "
                                << x.depth << " by " << x.depth << " x " << x.columns << ", batch " << x.batch << ": "
                                << library.status_text(status) << " (StitchConfig(compute=\"tvm\") avoids it)";
  }
  found.resize(count);
  return found;
}

// A product's operands as the library takes them.
struct Call {
  const void *a, *b, *c;
  void *d, *workspace;
  bool adds_c;

  int Run(const Plan& plan, Handle handle, void* stream) const {
    float alpha = 1, beta = adds_c ? 1 : 0;
    const auto& l = plan.layouts;
    return TheLibrary().matmul(handle, plan.desc, &alpha, a, l[0], b, l[1], &beta, c, l[2], d, l[3], &plan.algorithm,
                               workspace, plan.workspace, stream);
  }
};

// Has the plan take an algorithm of several: the one that was kept, else the fastest, which is kept, else the first.
void Choose(Plan* plan, Handle handle, const std::vector<Found>& candidates, const Call& call, const std::string& key,
            int device, bool can_measure, const DLTensor& workspace, void* stream) {
  auto take = [&](size_t i) {
    plan->algorithm = candidates[i].algorithm;
    plan->workspace = candidates[i].workspace;
  };
  Choices& choices = ChoicesOf("cublaslt", TheLibrary().version(), device);
  auto chosen = static_cast<size_t>(choices.Find(key, candidates.size()));
  if (chosen < candidates.size() || !can_measure) return take(chosen < candidates.size() ? chosen : 0);
  StreamTimer timer(stream, workspace);
  chosen = Fastest(candidates.size(), [&](size_t i, int calls) {
    take(i);
    auto run = [&] { return call.Run(*plan, handle, stream) == 0; };
    return candidates[i].status != 0 ? kFailed : timer.Measure(calls, run);
  });
  choices.Keep(key, static_cast<int64_t>(chosen));
  take(chosen);
}

// -- the product ----------------------------------------------------------------------------------------------
void FillWithZeros(const DLTensor& out, const Layout& x, void* stream) {
  const Driver& driver = TheDriver();
  size_t item = out.dtype.bits / 8;
  auto address = reinterpret_cast<uint64_t>(AddressOf(out));
  if (x.out_line == x.columns && (x.batch == 1 || x.out_batch == x.rows * x.columns)) {
    CheckDriver(driver.fill(address, 0, x.batch * x.rows * x.columns * item, stream), "filling with zeros");
    return;
  }
  for (int64_t i = 0; i < x.batch; ++i) {
    CheckDriver(driver.fill_lines(address + i * x.out_batch * item, x.out_line * item, 0, x.columns * item, x.rows,
                                  stream),
                "filling with zeros");
  }
}

struct Operands {
  DLTensor left, right, out, workspace;
  const void* bias = nullptr;
  const void* residual = nullptr;
};

void Compute(const Operands& given, const Layout& x, int64_t flags) {
  int in = TypeOf(given.left.dtype), out = TypeOf(given.out.dtype);
  if (TypeOf(given.right.dtype) != in || (out != in && out != kFloat32)) {
    TVM_FFI_THROW(TypeError) << "tvm_stitch: both sides of a product have one dtype, its result the same or float32";
  }
  if (x.rows == 0 || x.columns == 0 || x.batch == 0) return;
  if (x.batch > INT32_MAX) TVM_FFI_THROW(ValueError) << "tvm_stitch: a batch of " << x.batch << " products";
  bool lt = flags & kLeftTransposed, rt = flags & kRightTransposed;
  CheckWithin("result", given.out, x.rows, x.columns, x.out_line, x.batch, x.out_batch);
  DLDevice device = given.out.device;
  OnDevice current(device.device_id);
  void* stream = TVMFFIEnvGetStream(device.device_type, device.device_id);
  if (x.depth == 0) {
    if (flags & (kBias | kResidual)) TVM_FFI_THROW(ValueError) << "tvm_stitch: an epilogue of a product without depth";
    return FillWithZeros(given.out, x, stream);
  }
  CheckWithin("left side", given.left, lt ? x.depth : x.rows, lt ? x.rows : x.depth, x.left_line, x.batch,
              x.left_batch);
  CheckWithin("right side", given.right, rt ? x.columns : x.depth, rt ? x.depth : x.columns, x.right_line, x.batch,
              x.right_batch);
  void* d = AddressOf(given.out);
  const void* c = given.residual != nullptr ? given.residual : d;
  void* workspace = AddressOf(given.workspace);
  auto workspace_bytes = static_cast<size_t>(SizeOf(given.workspace));
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) workspace_bytes = 0;
  const void* a = AddressOf(given.right);
  const void* b = AddressOf(given.left);
  auto alignment_of = [](const void* address) { return AlignmentOf(address, kAlignmentThatPays); };
  std::array<uint32_t, 4> alignments = {alignment_of(a), alignment_of(b), alignment_of(c), alignment_of(d)};
  int64_t packed = 0;
  for (uint32_t alignment : alignments) packed = packed << 16 | alignment;
  Key key{};
  const auto* numbers = reinterpret_cast<const int64_t*>(&x);
  std::copy(numbers, numbers + kNumbers, key.begin());
  auto more = {flags, int64_t{in}, int64_t{out}, packed, static_cast<int64_t>(workspace_bytes),
               int64_t{alignment_of(given.bias)}};
  std::copy(more.begin(), more.end(), key.begin() + kNumbers);
  const Call call = {a, b, c, d, workspace, given.residual != nullptr};
  // By thread: the bias is written into a plan's descriptor before each call.
  thread_local std::map<int, std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash>> plans_of_devices;
  auto& plans = plans_of_devices[device.device_id];
  Handle handle = TheHandle(device.device_id);
  auto found = plans.find(key);
  if (found == plans.end()) {
    auto made = std::make_unique<Plan>();
    Describe(made.get(), x, flags, in, out);
    if (flags & kBias) {
      Check(TheLibrary().desc_set(made->desc, kDescBiasPointer, &given.bias, sizeof given.bias), "a bias");
    }
    bool can_measure = !IsCapturing(stream);
    bool timed = flags & kTimed;
    auto candidates = Candidates(made.get(), handle, x, alignments, workspace_bytes, in, timed ? kMostTimed : 1);
    made->algorithm = candidates[0].algorithm;
    made->workspace = candidates[0].workspace;
    if (timed) {
      // What is added to a result in its place can be added once only.
      can_measure = can_measure && given.residual != d;
      Choose(made.get(), handle, candidates, call, KeyOf(key), device.device_id, can_measure, given.workspace, stream);
    }
    if (plans.size() >= kMostPlans) plans.clear();
    found = plans.emplace(key, std::move(made)).first;
  } else if (flags & kBias) {
    Check(TheLibrary().desc_set(found->second->desc, kDescBiasPointer, &given.bias, sizeof given.bias), "a bias");
  }
  Check(call.Run(*found->second, handle, stream), "a product");
}

// matmul(left, right, bias?, residual?, numbers, mode, out, workspace)
void Matmul(ffi::PackedArgs args, ffi::Any*) {
  if (args.size() < 6) TVM_FFI_THROW(TypeError) << "tvm_stitch: a product has at least 6 arguments";
  int at = 0;
  auto tensor = [&] { return *args[at++].cast<DLTensor*>(); };
  Operands given{};
  given.left = tensor();
  given.right = tensor();
  int extras = args.size() - 6;
  DLTensor extra[2]{};
  if (extras > 2) TVM_FFI_THROW(TypeError) << "tvm_stitch: a product has at most 8 arguments";
  for (int i = 0; i < extras; ++i) extra[i] = tensor();
  auto numbers = args[at++].cast<ffi::Shape>();
  if (numbers.size() != kNumbers) TVM_FFI_THROW(ValueError) << "tvm_stitch: a product has " << kNumbers << " numbers";
  Layout x;
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int64_t*>(&x));
  auto mode = args[at++].cast<ffi::String>();
  int64_t flags = FlagsOf(std::string_view(mode.data(), mode.size()));
  given.out = tensor();
  given.workspace = tensor();
  int wanted = (flags & kBias ? 1 : 0) + (flags & kResidual ? 1 : 0);
  if (wanted != extras) TVM_FFI_THROW(TypeError) << "tvm_stitch: the mode of a product names other operands";
  int next = 0;
  auto check = [&](const DLTensor& operand, int64_t size) {
    if (TypeOf(operand.dtype) != TypeOf(given.out.dtype) || SizeOf(operand) != size) {
      TVM_FFI_THROW(TypeError) << "tvm_stitch: an operand of a product's epilogue does not fit its result";
    }
    return AddressOf(operand);
  };
  if (flags & kBias) given.bias = check(extra[next++], x.columns);
  if (flags & kResidual) given.residual = check(extra[next++], SizeOf(given.out));
  Compute(given, x, flags);
}

}  // namespace

TVM_STITCH_EXPORT(cublaslt, matmul, Matmul)
