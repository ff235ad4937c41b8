// Breaks lines between words.
#include "cli/wrap.hpp"

#include <sstream>

namespace everglow::cli {

void wrap(std::string& out, std::string_view text, std::size_t indent) {
  std::istringstream words{std::string(text)};
  std::size_t column = out.size() - (out.rfind('\n') + 1);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > page_width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

}  // namespace everglow::cli
