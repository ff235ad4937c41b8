// Code points and their classes, by utf8proc.
#include "unicode.hpp"

#include <utf8proc.h>

namespace everglow::gnmt {

std::int32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x80) {
    ++i;
    return byte;
  }
  utf8proc_int32_t point = -1;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i;
  const auto used = utf8proc_iterate(at, static_cast<utf8proc_ssize_t>(text.size() - i), &point);
  if (used <= 0) return -1;
  i += static_cast<std::size_t>(used);
  return point;
}

void append_utf8(std::string& text, std::int32_t point) {
  utf8proc_uint8_t bytes[4];
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(utf8proc_encode_char(point, bytes)));
}

bool is_space(std::int32_t point) {
  if (point < 0x80) return point == ' ' || (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x1F);
  if (point == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(point);
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(std::int32_t point) {
  const utf8proc_category_t category = utf8proc_category(point);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_symbol(std::int32_t point) {
  const utf8proc_category_t category = utf8proc_category(point);
  return category >= UTF8PROC_CATEGORY_SM && category <= UTF8PROC_CATEGORY_SO;
}

bool is_number(std::int32_t point) {
  const utf8proc_category_t category = utf8proc_category(point);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace everglow::gnmt
