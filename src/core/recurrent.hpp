// What the recurrent rows share: the options that no row serves yet, and the reading of lengths.
#pragma once

#include "core/rows.hpp"

#include <cstdint>

namespace everglow::recurrent {

/// Rows of w_ih and w_hh for one hidden unit.
constexpr std::int64_t gate_count(Cell cell) {
  if (cell == Cell::lstm) return 4;
  return cell == Cell::gru || cell == Cell::gru_reset_before ? 3 : 1;
}

inline Verdict served(const RecurrentQuery& q) {
  const RecurrentDescription& d = q.description;
  if (d.cell == Cell::gru) return decline("gru is not served yet");
  if (d.cell == Cell::gru_reset_before) return decline("gru_reset_before is not served yet");
  if (d.cell == Cell::tanh) return decline("tanh is not served yet");
  if (d.cell == Cell::relu) return decline("relu is not served yet");
  if (d.layers > 1) return decline("layers > 1 is not served yet");
  if (d.projection > 0) return decline("projection is not served yet");
  if (d.dropout > 0) return decline("dropout is not served yet");
  if (d.resets) return decline("resets are not served yet");
  return accept();
}

/// Valid steps of row b; all `steps` where no lengths are given.
inline std::int64_t length_of(const ConstTensorView& lengths, std::int64_t b, std::int64_t steps) {
  return lengths.given() ? static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]] : steps;
}

}  // namespace everglow::recurrent
