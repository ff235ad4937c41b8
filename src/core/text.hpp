// Builds the text of messages from parts; the core library has no formatting library of its own.
#pragma once

#include <sstream>
#include <string>

namespace everglow {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace everglow
