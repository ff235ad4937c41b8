// Calls a function for the element types of an operand and of a result.
#pragma once

#include "core/visit.hpp"
#include "cuda/common/storage.cuh"

namespace everglow::cuda {

/// Calls f with an element of the operands and one of the result: the same, or float.
template <class F>
void visit_result(DType in, DType out, const F& f) {
  visit_storage(in, [&](auto element) {
    using T = Stored<decltype(element)>;
    if (in == out)
      f(T{}, T{});
    else
      f(T{}, float{});
  });
}

}  // namespace everglow::cuda
