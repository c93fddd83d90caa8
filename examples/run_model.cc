// SPDX-License-Identifier: Apache-2.0
// Runs a compiled model without Python: all that it needs are model.so, libtvm_runtime and libtvm_ffi.
//
//   run_model [--device cuda] model.so FILE:DTYPE:SIZE,SIZE...
//
// Each input is a file of plain numbers in row-major order, such as NumPy's tofile writes, with its dtype and shape:
// x.bin:float32:5,16 (nothing after the last colon is a scalar). Results go to output0.bin, output1.bin... in the
// current folder, and their dtypes and shapes to stdout. The user guide says how the program is built.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace ffi = tvm::ffi;

// What TVM's runtime calls the allocator that keeps memory for later calls.
constexpr int kPooledAllocator = 2;

ffi::Function Registered(const char* name) { return ffi::Function::GetGlobalRequired(name); }

ffi::Function FunctionOf(const ffi::Module& module, const char* name) {
  ffi::Optional<ffi::Function> found = module->GetFunction(name);
  if (!found.has_value()) throw std::runtime_error(std::string("the model has no function ") + name);
  return found.value();
}

// The number of bytes that a tensor's elements take.
size_t BytesOf(const ffi::Tensor& tensor) { return ffi::GetDataSize(tensor); }

std::vector<int64_t> ParseShape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream sizes(text);
  for (std::string size; std::getline(sizes, size, ',');) {
    size_t used = 0;
    int64_t number = -1;
    try {
      number = std::stoll(size, &used);
    } catch (const std::logic_error&) {
    }
    if (number < 0 || used != size.size()) throw std::runtime_error("no size of a shape: '" + size + "'");
    shape.push_back(number);
  }
  return shape;
}

DLDataType ParseDtype(const std::string& text) {
  DLDataType dtype = ffi::StringToDLDataType(text);
  bool plain = dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLFloat;
  bool bytes = dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64 || (dtype.bits == 8 && dtype.code != kDLFloat);
  if (dtype.lanes != 1 || (plain && !bytes)) throw std::runtime_error("no dtype of a tensor: '" + text + "'");
  return dtype;
}

// A tensor on a device with the numbers of a file; `text` is FILE:DTYPE:SIZE,SIZE.
ffi::Tensor ReadInput(const std::string& text, DLDevice device) {
  size_t last = text.rfind(':');
  size_t first = last == std::string::npos || last == 0 ? std::string::npos : text.rfind(':', last - 1);
  if (first == std::string::npos) throw std::runtime_error("an input is FILE:DTYPE:SIZE,SIZE, not " + text);
  std::string path = text.substr(0, first);
  DLDataType dtype = ParseDtype(text.substr(first + 1, last - first - 1));
  ffi::Shape shape(ParseShape(text.substr(last + 1)));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto tensor = Registered("runtime.TVMTensorAllocWithScope")(shape, dtype, device, nullptr).cast<ffi::Tensor>();
  if (bytes.size() != BytesOf(tensor)) {
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes, its shape and dtype need " +
                             std::to_string(BytesOf(tensor)));
  }
  Registered("runtime.TVMTensorCopyFromBytes")(tensor, static_cast<void*>(bytes.data()),
                                               static_cast<int64_t>(bytes.size()));
  return tensor;
}

// Writes one result, or all of a tuple; `count` numbers them.
void WriteOutputs(const ffi::Any& result, int* count) {
  if (auto several = result.as<ffi::Array<ffi::Any>>()) {
    for (const ffi::Any& one : *several) WriteOutputs(one, count);
    return;
  }
  auto tensor = result.cast<ffi::Tensor>();
  std::vector<char> bytes(BytesOf(tensor));
  Registered("runtime.TVMTensorCopyToBytes")(tensor, static_cast<void*>(bytes.data()),
                                             static_cast<int64_t>(bytes.size()));
  std::string path = "output" + std::to_string((*count)++) + ".bin";
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
  std::cout << path << ":" << ffi::DLDataTypeToString(tensor.dtype()) << ":";
  for (int i = 0; i < tensor.ndim(); ++i) std::cout << (i > 0 ? "," : "") << tensor.size(i);
  std::cout << "\n";
}

// The part of TVM's runtime that drives GPUs is a library of its own.
void LoadCudaRuntime() {
  if (dlopen("libtvm_runtime_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

void Run(const std::string& path, const std::vector<std::string>& inputs, bool cuda) {
  // Functions that some operators left to TVM call, such as sort; models without them do not need it.
  dlopen("libtvm_runtime_extra.so", RTLD_NOW | RTLD_GLOBAL);
  if (cuda) LoadCudaRuntime();
  DLDevice device{cuda ? kDLCUDA : kDLCPU, 0};
  // As a path: a plain name would be looked up where the system's libraries are.
  ffi::Module library = ffi::Module::LoadFromFile(std::filesystem::absolute(path).string());
  // Says by name what the CPU lacks, if it is older than the one that the model is compiled for.
  if (auto check = library->GetFunction("tvm_stitch_check_cpu", true)) (*check)();
  auto vm = FunctionOf(library, "vm_load_executable")().cast<ffi::Module>();
  ffi::Function initialize = FunctionOf(vm, "vm_initialization");
  if (cuda) {  // shapes are computed on the CPU, which comes last
    initialize(static_cast<int>(kDLCUDA), 0, kPooledAllocator, static_cast<int>(kDLCPU), 0, kPooledAllocator);
  } else {
    initialize(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  }
  std::vector<ffi::Tensor> tensors;  // own what the call is given views of
  for (const std::string& input : inputs) tensors.push_back(ReadInput(input, device));
  std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
  ffi::Any result;
  FunctionOf(vm, "main").CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  int count = 0;
  WriteOutputs(result, &count);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  bool cuda = words.size() > 1 && words[0] == "--device" && words[1] == "cuda";
  if (cuda) words.erase(words.begin(), words.begin() + 2);
  if (words.empty() || words[0].rfind("--", 0) == 0) {
    std::cerr << "usage: run_model [--device cuda] model.so FILE:DTYPE:SIZE,SIZE...\n";
    return 2;
  }
  try {
    Run(words[0], {words.begin() + 1, words.end()}, cuda);
  } catch (const ffi::Error& error) {
    std::cerr << "run_model: " << error.kind() << ": " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
