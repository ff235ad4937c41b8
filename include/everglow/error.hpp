// The one exception type of the library. Its text reads `[layer.direction] what was expected, what came`.
#pragma once

#include <everglow/export.hpp>

#include <stdexcept>
#include <string>
#include <string_view>

namespace everglow {

/// What kind of fault an Error reports; programs branch on this, people read the text.
enum class ErrorCode {
  invalid_argument,  ///< a value, shape, stride or pointer that no row could serve
  type_mismatch,     ///< a wrong dtype or a tensor on the wrong device
  unsupported,       ///< a valid request that no row of this build serves; the text lists why each row declined
  out_of_memory,     ///< memory could not be had, or a workspace is too small
  device,            ///< the device reported a fault
  io,                ///< a file could not be read or written, or its content is damaged
};

/// Lower-case name of a code, for example "invalid_argument".
EVERGLOW_API std::string_view name(ErrorCode code) noexcept;

/// Thrown for everything that can be known before a launch. `where` is "linear.forward", or what was called.
class EVERGLOW_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string_view where, std::string_view what);
  ErrorCode code() const noexcept { return code_; }
  const std::string& where() const noexcept { return where_; }

 private:
  ErrorCode code_;
  std::string where_;
};

}  // namespace everglow
