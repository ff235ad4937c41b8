// The workspace of the linear rows of a card: rooms for the copies that plan/odd.hpp wants of dense tensors or of such on preferred
// strides. cuBLASLt is several times as fast where rows, and sizes along rows, are multiples of 16 bytes.
#pragma once

#include "core/arena.hpp"
#include "core/rows.hpp"
#include "cuda/common/library_product.hpp"
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
  void* dbias = nullptr;
};
BackwardRooms backward_rooms(const LinearQuery& query, Arena& arena);

struct PlainRooms {
  void* dz = nullptr;
  float* sums = nullptr;
};
PlainRooms plain_rooms(const LinearQuery& query, Arena& arena);

/// Elements of 16 bytes.
std::int64_t unit_of(DType dtype);
/// Bytes on which the first element and the rows stand, a power of two.
std::int64_t alignment_of(const Matrix& m);
/// Rows or the first element not on 16 bytes.
inline bool needs_staging(const Matrix& m) { return alignment_of(m) < 16; }
/// The same rows and columns in a room, rows on 64 bytes.
Matrix staged_matrix(const Matrix& m, void* room);

/// The form in which cuBLASLt multiplies in a pass (forward, activation gradient, weight gradient) of dense tensors, or of
/// such on preferred strides where dense rows are off 16 bytes; none where it does not.
std::optional<cublaslt::Form> form_of_pass(const LinearQuery& query, int pass, cublaslt::Epilogue epilogue);

}  // namespace everglow::cuda
