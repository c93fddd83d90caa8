// SPDX-License-Identifier: Apache-2.0
// The least program that runs a compiled model: model.so takes one float32 tensor of 4 x 8 and returns one.
// docs/deployment.md says how it is built; run_model.cc takes any model and any inputs.
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

int main() {
  namespace ffi = tvm::ffi;
  // By a path with a slash: a plain name would be looked up where the system's libraries are.
  ffi::Module library = ffi::Module::LoadFromFile(std::filesystem::absolute("model.so").string());
  // Says by name what the CPU lacks, if it is older than the one that the model is compiled for.
  if (auto check = library->GetFunction("tvm_stitch_check_cpu", true)) (*check)();
  auto vm = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  vm->GetFunction("vm_initialization").value()(int{kDLCPU}, 0, 2);  // 2: the allocator that keeps memory for later

  auto allocate = ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  auto x = allocate(ffi::Shape({4, 8}), DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0}, nullptr).cast<ffi::Tensor>();
  std::fill_n(static_cast<float*>(x.data_ptr()), 4 * 8, 1.0f);

  auto y = vm->GetFunction("main").value()(x).cast<ffi::Tensor>();
  std::printf("%g\n", static_cast<float*>(y.data_ptr())[0]);
}
