// The layers and the floating-point dtypes, in the order in which the tool shows them.
#pragma once

#include <array>

namespace everglow::cli {

inline constexpr std::array layers{"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"};
inline constexpr std::array dtype_names{"f32", "f16", "bf16", "f64"};

}  // namespace everglow::cli
