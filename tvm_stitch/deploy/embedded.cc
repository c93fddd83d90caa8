// SPDX-License-Identifier: Apache-2.0
// Two kinds of modules that TVM's Python cannot make, for what travels with a model.
//
// The first holds functions written in C++ that run where the model is compiled too. TVM's own module of an object file
// does not run before it is linked, and would make every model that imports one be linked, weights included, before its
// first call. This one has both: the functions of a library that is loaded, and the object that they were linked from,
// which `export_library` links into the model's library.
//
// The second is another module's serialized form, changed by who makes it: its kind and bytes, and no functions.
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

  const char* kind() const final { return "tvm_stitch.deploy.embedded"; }

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

class SerializedObj final : public ffi::ModuleObj {
 public:
  SerializedObj(ffi::String kind, ffi::Bytes bytes) : kind_(std::move(kind)), bytes_(std::move(bytes)) {}

  const char* kind() const final { return kind_.c_str(); }

  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final { return std::nullopt; }

  ffi::Bytes SaveToBytes() const final { return bytes_; }

 private:
  ffi::String kind_;
  ffi::Bytes bytes_;
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_stitch.deploy.embedded.create",
           [](ffi::Module library, ffi::Bytes object) {
             return ffi::Module(ffi::make_object<EmbeddedObj>(std::move(library), std::move(object)));
           })
      .def("tvm_stitch.deploy.embedded.serialize", [](ffi::Module module) { return module->SaveToBytes(); })
      .def("tvm_stitch.deploy.embedded.serialized", [](ffi::String kind, ffi::Bytes bytes) {
        return ffi::Module(ffi::make_object<SerializedObj>(std::move(kind), std::move(bytes)));
      });
}
