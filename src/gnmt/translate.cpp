// Translation of text: pieces, search, text again.
#include <everglow/gnmt/translate.hpp>

namespace everglow::gnmt {

std::vector<std::string> translate(Model& model, const Tokenizer& tokenizer, std::span<const std::string> lines,
                                   const SearchOptions& options) {
  std::vector<std::vector<std::int32_t>> sources;
  for (const std::string& line : lines) sources.push_back(tokenizer.encode(line));
  std::vector<std::string> out;
  for (const std::vector<std::int32_t>& pieces : search(model, sources, options)) out.push_back(tokenizer.decode(pieces));
  return out;
}

}  // namespace everglow::gnmt
