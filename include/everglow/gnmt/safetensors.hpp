// Reads and writes the safetensors format: an 8-byte length, a JSON header, then the bytes of the tensors. Strict: overlapping,
// missing or surplus bytes are refused.
#pragma once

#include <everglow/tensor.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace everglow::gnmt {

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // dense, on the CPU
};

/// Writes to a temporary file in the same folder, fsync, rename, fsync of the folder: a reader sees the old file or the new one.
void save_safetensors(const std::string& file, std::span<const NamedTensor> tensors, const std::map<std::string, std::string>& metadata);

class SafetensorsFile {
 public:
  /// Throws Error(io) with the file's name and what is wrong.
  explicit SafetensorsFile(const std::string& file);
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  ConstTensorView tensor(const std::string& name) const;  ///< valid while this object lives

 private:
  std::shared_ptr<std::vector<std::byte>> bytes_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, ConstTensorView> tensors_;
};

}  // namespace everglow::gnmt
