// SPDX-License-Identifier: Apache-2.0
// Which of a library's algorithms was the fastest, kept in a file: processes share what one of them measured.
//
// The file lies in $TVM_STITCH_CACHE_DIR, else in the user's cache folder. It has a line "key choice" for each of them.
// Lines are appended whole, and what is no such line is passed over. Where there is no file that this user alone may
// write, nothing is kept and everything else goes on: a choice is a matter of time alone.
#ifndef TVM_STITCH_COMPUTE_CUDA_CHOICES_H_
#define TVM_STITCH_COMPUTE_CUDA_CHOICES_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tvm_stitch {
namespace {

// The folder of what is kept; empty where there is none.
inline std::string CacheFolder() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string own = variable("TVM_STITCH_CACHE_DIR"); !own.empty()) return own;
  if (std::string base = variable("XDG_CACHE_HOME"); !base.empty()) return base + "/tvm_stitch";
  std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/tvm_stitch";
}

class Choices {
 public:
  // ``title``: of what the choices depend on beside their keys, the library's version and the device's name.
  explicit Choices(const std::string& title) {
    std::string folder = CacheFolder();
    if (folder.empty()) return;
    folder += "/algorithms";
    std::string name;
    for (char c : title) name += std::isalnum(static_cast<unsigned char>(c)) || c == '.' ? c : '-';
    for (size_t at = folder.find('/', 1); at != std::string::npos; at = folder.find('/', at + 1)) {
      mkdir(folder.substr(0, at).c_str(), 0700);
    }
    mkdir(folder.c_str(), 0700);
    file_ = open((folder + "/" + name + ".txt").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat found;
    if (file_ >= 0 && (fstat(file_, &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
                       (found.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
      close(file_);
      file_ = -1;
    }
  }
  Choices(const Choices&) = delete;
  ~Choices() {
    if (file_ >= 0) close(file_);
  }

  // What was kept for a key, by any process up to now; ``none`` if nothing was.
  int64_t Find(const std::string& key, int64_t none) {
    std::lock_guard<std::mutex> guard(lock_);
    auto found = known_.find(key);
    if (found == known_.end()) {
      ReadOn();
      found = known_.find(key);
    }
    return found == known_.end() ? none : found->second;
  }

  // Keeps a choice; ``key`` has no blanks.
  void Keep(const std::string& key, int64_t choice) {
    std::lock_guard<std::mutex> guard(lock_);
    known_[key] = choice;
    std::string line = key + " " + std::to_string(choice) + "\n";
    // One call of write, so that lines of several processes do not mix.
    if (file_ >= 0 && write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      close(file_);
      file_ = -1;
    }
  }

 private:
  // Reads the lines that were appended since.
  void ReadOn() {
    char buffer[4096];
    ssize_t count;
    while (file_ >= 0 && (count = pread(file_, buffer, sizeof buffer, read_)) > 0) {
      read_ += count;
      for (ssize_t i = 0; i < count; ++i) {
        if (buffer[i] != '\n') {
          line_ += buffer[i];
          continue;
        }
        Take(line_);
        line_.clear();
      }
    }
  }

  void Take(const std::string& line) {
    size_t blank = line.find(' ');
    if (blank == std::string::npos || blank == 0) return;
    char* end = nullptr;
    long long choice = std::strtoll(line.c_str() + blank + 1, &end, 10);
    if (end != line.c_str() + line.size() || end == line.c_str() + blank + 1 || choice < 0) return;
    known_.emplace(line.substr(0, blank), choice);  // of two processes that measured, the first one counts for all
  }

  std::mutex lock_;
  std::unordered_map<std::string, int64_t> known_;
  std::string line_;
  off_t read_ = 0;
  int file_ = -1;
};

}  // namespace
}  // namespace tvm_stitch

#endif  // TVM_STITCH_COMPUTE_CUDA_CHOICES_H_
