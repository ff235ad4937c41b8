// The one place where the storage type of a run becomes a type of the compiler.
#pragma once

#include <everglow/tensor.hpp>

namespace everglow {

/// Calls f with an element of the type: float, Half or BFloat16. Rows that call it accept no other.
template <class F>
decltype(auto) visit_storage(DType dtype, const F& f) {
  if (dtype == DType::f16) return f(Half{});
  if (dtype == DType::bf16) return f(BFloat16{});
  return f(float{});
}

/// A row of a matrix whose last stride is 1.
template <class T>
const T* row_of(const ConstTensorView& view, std::int64_t row) {
  return static_cast<const T*>(view.data) + row * view.strides[0];
}
template <class T>
T* row_of(const TensorView& view, std::int64_t row) {
  return static_cast<T*>(view.data) + row * view.strides[0];
}

}  // namespace everglow
