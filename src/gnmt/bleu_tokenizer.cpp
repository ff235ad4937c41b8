// How sacreBLEU cuts lines into words before it counts: "13a" (mteval-v13a) and "intl" (mteval-v14, international). Both are a few
// substitutions of regular expressions, one after the other, over one or two characters; a pass here is one such substitution,
// which scans from left to right and goes on behind each match.
#include <everglow/gnmt/bleu.hpp>

#include "unicode.hpp"

#include <algorithm>

namespace everglow::gnmt {

namespace {

using Text = std::u32string;

/// Bytes that are not UTF-8 are kept as values of their own, as Python's surrogateescape keeps them.
constexpr char32_t stray_byte = 0xDC00;

Text decode(std::string_view line) {
  Text text;
  for (std::size_t i = 0; i < line.size();) {
    const std::int32_t point = next_code_point(line, i);
    text += point >= 0 ? static_cast<char32_t>(point) : stray_byte + static_cast<unsigned char>(line[i++]);
  }
  return text;
}

/// UTF-8 with single spaces between words and none around them.
std::string encode(const Text& text) {
  std::string line;
  bool pending = false;
  for (const char32_t c : text) {
    if (is_space(static_cast<std::int32_t>(c))) {
      pending = !line.empty();
      continue;
    }
    if (pending) line += ' ';
    pending = false;
    if (c >= stray_byte && c < stray_byte + 0x100)
      line += static_cast<char>(c - stray_byte);
    else
      append_utf8(line, static_cast<std::int32_t>(c));
  }
  return line;
}

void replace_all(Text& text, std::u32string_view from, std::u32string_view to) {
  for (std::size_t at = text.find(from); at != Text::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
}

/// s/([matches])/ \1 /g
template <class Matches>
Text surround(const Text& text, Matches matches) {
  Text out;
  for (const char32_t c : text) {
    if (matches(c)) {
      (((out += U' ') += c) += U' ');
    } else {
      out += c;
    }
  }
  return out;
}

/// s/([first])([second])/\1 \2 /g, or / \1 \2/ with `space_before`
template <class First, class Second>
Text separate(const Text& text, First first, Second second, bool space_before) {
  Text out;
  std::size_t i = 0;
  while (i < text.size()) {
    if (i + 1 == text.size() || !first(text[i]) || !second(text[i + 1])) {
      out += text[i++];
      continue;
    }
    if (space_before) out += U' ';
    ((out += text[i]) += U' ') += text[i + 1];
    if (!space_before) out += U' ';
    i += 2;
  }
  return out;
}

bool ascii_digit(char32_t c) { return c >= U'0' && c <= U'9'; }

Text tokenize_13a(Text text) {
  replace_all(text, U"<skipped>", U"");
  replace_all(text, U"-\n", U"");
  replace_all(text, U"\n", U" ");
  replace_all(text, U"&quot;", U"\"");
  replace_all(text, U"&amp;", U"&");
  replace_all(text, U"&lt;", U"<");
  replace_all(text, U"&gt;", U">");
  text = U' ' + text + U' ';
  const auto other = [](char32_t c) { return !ascii_digit(c); };
  const auto stop = [](char32_t c) { return c == U'.' || c == U','; };
  const auto cut_always = [](char32_t c) {  // ASCII punctuation and symbols but for the apostrophe, comma, hyphen and full stop
    return (c >= U'{' && c <= U'~') || (c >= U'[' && c <= U'`') || (c >= U' ' && c <= U'&') || (c >= U'(' && c <= U'+') ||
           (c >= U':' && c <= U'@') || c == U'/';
  };
  text = surround(text, cut_always);
  text = separate(text, other, stop, false);
  text = separate(text, stop, other, true);
  return separate(
      text, ascii_digit, [](char32_t c) { return c == U'-'; }, false);
}

Text tokenize_intl(Text text) {
  const auto punctuation = [](char32_t c) { return is_punctuation(static_cast<std::int32_t>(c)); };
  const auto other = [](char32_t c) { return !is_number(static_cast<std::int32_t>(c)); };
  text = separate(text, other, punctuation, false);
  text = separate(text, punctuation, other, true);
  return surround(text, [](char32_t c) { return is_symbol(static_cast<std::int32_t>(c)); });
}

}  // namespace

std::string tokenize_for_bleu(std::string_view line, BleuTokenizer tokenizer) {
  Text text = decode(line);
  while (!text.empty() && is_space(static_cast<std::int32_t>(text.back())))
    text.pop_back();  // before the rules: intl keeps "1990." whole only at the end
  return encode(tokenizer == BleuTokenizer::v13a ? tokenize_13a(std::move(text)) : tokenize_intl(std::move(text)));
}

}  // namespace everglow::gnmt
