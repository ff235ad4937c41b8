// Vectors of stored matrices: widened to f32 where they are read, rounded once where they are written. Included only by the sources
// of an isa/ folder.
#pragma once

#include "core/simd.hpp"
#include "core/stored.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// `count` elements (at most a vector) that lie `step` apart; the rest is 0.
template <class T>
inline vfloat read_elements(const T* p, std::int64_t step, int count) {
  if (step == 1) return count == lanes ? load(p) : load_part(p, count);
  T buffer[lanes];
  for (int i = 0; i < count; ++i) buffer[i] = p[i * step];
  return load_part(buffer, count);
}
template <class T>
inline void write_elements(T* p, std::int64_t step, vfloat value, int count) {
  if (step == 1) {
    if (count == lanes)
      store(p, value);
    else
      store_part(p, value, count);
    return;
  }
  T buffer[lanes];
  store(buffer, value);
  for (int i = 0; i < count; ++i) p[i * step] = buffer[i];
}

/// The part of a row that begins at a column.
inline vfloat read(const Stored& m, std::int64_t row, std::int64_t column, int count) {
  const std::int64_t at = row * m.stride + column * m.step;
  if (m.element == Element::f32) return read_elements(static_cast<const float*>(m.data) + at, m.step, count);
  if (m.element == Element::f16) return read_elements(static_cast<const Half*>(m.data) + at, m.step, count);
  return read_elements(static_cast<const BFloat16*>(m.data) + at, m.step, count);
}
inline void write(const StoredOut& m, std::int64_t row, std::int64_t column, vfloat value, int count) {
  const std::int64_t at = row * m.stride + column * m.step;
  if (m.element == Element::f32)
    write_elements(static_cast<float*>(m.data) + at, m.step, value, count);
  else if (m.element == Element::f16)
    write_elements(static_cast<Half*>(m.data) + at, m.step, value, count);
  else
    write_elements(static_cast<BFloat16*>(m.data) + at, m.step, value, count);
}

/// How much of a vector is left of `columns` from column `c` on, which is one of them.
inline int vector_part(std::int64_t columns, std::int64_t c) {
  const std::int64_t left = columns - c;
  if (left < 1) __builtin_unreachable();
  return left < lanes ? static_cast<int>(left) : lanes;
}

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
