// UTF-8 in and out of code points, and the classes that words and BLEU are cut by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace everglow::gnmt {

/// The code point of `text` at `i`, which moves on to the next. Negative, with `i` left alone, where the bytes are not UTF-8
/// (overlong forms, surrogates and values above U+10FFFF included).
std::int32_t next_code_point(std::string_view text, std::size_t& i);
void append_utf8(std::string& text, std::int32_t point);

bool is_space(std::int32_t point);        ///< what Python's str.split() cuts at
bool is_punctuation(std::int32_t point);  ///< Unicode categories P*
bool is_symbol(std::int32_t point);       ///< S*
bool is_number(std::int32_t point);       ///< N*

}  // namespace everglow::gnmt
