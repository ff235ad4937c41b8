// The workspace of the linear rows of a card, and which tensors are staged: copied to rows that are multiples of 16 bytes, where
// cuBLASLt is several times as fast, if dense tensors are not and the plan predicts that the copies cost less than they gain. It is
// slow as well where k alone is odd, however far rows stand apart: forward then stages both operands, with zeros up to a whole k.
#pragma once

#include "core/arena.hpp"
#include "core/rows.hpp"
#include "cuda/common/matrix.hpp"

namespace everglow::cuda {

/// cublaslt::workspace_bytes on 256 bytes: cuBLASLt refuses scratch that is not; an arena's is on 64.
void* take_library_scratch(Arena& arena);

/// Rooms are null where there is nothing to stage for dense tensors (and while an arena only counts).
struct ForwardRooms {
  void* library = nullptr;
  void* bias = nullptr;
  void* x = nullptr;
  void* weight = nullptr;
  void* y = nullptr;
};
ForwardRooms forward_rooms(const LinearQuery& query, Arena& arena);

struct BackwardRooms {
  void* library = nullptr;
  float* sums = nullptr;
  void* x = nullptr;
  void* weight = nullptr;
  void* dz = nullptr;
  void* dx = nullptr;
  void* wide_dx = nullptr;  // f32
  void* dweight = nullptr;
};
BackwardRooms backward_rooms(const LinearQuery& query, Arena& arena);

struct PlainRooms {
  void* dz = nullptr;
  float* sums = nullptr;
};
PlainRooms plain_rooms(const LinearQuery& query, Arena& arena);

/// Elements of 16 bytes.
std::int64_t unit_of(DType dtype);
/// The largest multiple of 16 bytes that fits, in elements.
inline std::int64_t whole_units(std::int64_t elements, DType dtype) { return elements / unit_of(dtype) * unit_of(dtype); }
/// Rows or the first element not on 16 bytes.
bool needs_staging(const Matrix& m);
/// The same rows and columns in a room, rows on 64 bytes.
Matrix staged_matrix(const Matrix& m, void* room);

/// The product of a pass (forward, activation gradient, weight gradient) on dense tensors, staged as they would be.
struct DenseProduct {
  Matrix a, b, c;
};
DenseProduct dense_product(const LinearQuery& query, int pass);

}  // namespace everglow::cuda
