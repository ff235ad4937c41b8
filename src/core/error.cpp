// Error: the text is put together here so that every message has the same form.
#include <everglow/error.hpp>

#include "core/text.hpp"

namespace everglow {

std::string_view name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::type_mismatch:
      return "type_mismatch";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::device:
      return "device";
    case ErrorCode::io:
      return "io";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string_view where, std::string_view what)
    : std::runtime_error(text('[', where, "] ", what)), code_(code), where_(where) {}

}  // namespace everglow
