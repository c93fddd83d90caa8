// SPDX-License-Identifier: Apache-2.0
// A check of the CPU that is linked into a model's library. TVM_STITCH_CPU_FLAGS is the list of the flags of /proc/cpuinfo
// that the library's code may use, each with a space behind it.
//
// A library cannot refuse to be loaded by code of its own. So its constructor says on stderr what the CPU lacks, before an
// illegal instruction ends the process without a word, and `tvm_stitch_check_cpu` raises an error that says the same.
#include <dlfcn.h>
#include <tvm/ffi/c_api.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace {

// The flags that this machine's CPU lacks, with a space before each. Empty if that is unknown.
std::string Missing() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 5, "flags") != 0) continue;
    std::string here = line.substr(line.find(':') + 1) + " ", missing, flag;
    std::istringstream needed(TVM_STITCH_CPU_FLAGS);
    while (needed >> flag) {
      if (here.find(" " + flag + " ") == std::string::npos) missing += " " + flag;
    }
    return missing;
  }
  return "";
}

std::string Message(const std::string& missing) {
  Dl_info info{};
  const void* here = reinterpret_cast<const void*>(&Missing);
  const char* name = dladdr(here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "the model";
  return std::string(name) + " does not run here: this machine's CPU is older than the one it is compiled for: it lacks" +
         missing + "; compile for the oldest CPU that has to run it, such as 'llvm -mcpu=x86-64-v3'";
}

__attribute__((constructor)) void Warn() {
  std::string missing = Missing();
  if (!missing.empty()) std::fprintf(stderr, "%s\n", Message(missing).c_str());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_tvm_stitch_check_cpu(void*, const TVMFFIAny*, int32_t,
                                                                                      TVMFFIAny* result) {
  std::string missing = Missing();
  if (!missing.empty()) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", Message(missing).c_str());
    return -1;
  }
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}
