// SPDX-License-Identifier: Apache-2.0
// A module of functions written in C++ that runs where a model is compiled and travels with the model.
//
// TVM's own module of an object file does not run before it is linked, and would make every model that imports one be
// linked, weights included, before its first call. This one has both: the functions of a library that is loaded, and
// the object that they were linked from, which `export_library` links into the model's library.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <fstream>
#include <utility>

namespace {

namespace ffi = tvm::ffi;

class EmbeddedObj final : public ffi::ModuleObj {
 public:
  EmbeddedObj(ffi::Module library, ffi::Bytes object) : library_(std::move(library)), object_(std::move(object)) {}

  const char* kind() const final { return "tvm_stitch.embedded"; }

  int GetPropertyMask() const final { return ffi::Module::kRunnable | ffi::Module::kCompilationExportable; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final { return library_->GetFunction(name); }

  ffi::Array<ffi::String> GetWriteFormats() const final { return {ffi::String("o")}; }

  void WriteToFile(const ffi::String& path, const ffi::String&) const final {
    std::ofstream file(path.c_str(), std::ios::binary);
    file.write(object_.data(), static_cast<std::streamsize>(object_.size()));
    if (!file.flush()) TVM_FFI_THROW(RuntimeError) << "tvm_stitch: cannot write " << path;
  }

 private:
  ffi::Module library_;
  ffi::Bytes object_;
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_stitch.embedded.create", [](ffi::Module library, ffi::Bytes object) {
    return ffi::Module(ffi::make_object<EmbeddedObj>(std::move(library), std::move(object)));
  });
}
