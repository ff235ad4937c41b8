// A product of a layer whose sizes may be odd, by the scheme of plan/odd.hpp: prepared, multiplied by the caller or here, and
// finished.
#pragma once

#include "cuda/common/library_product.hpp"
#include "cuda/common/odd.hpp"
#include "plan/odd.hpp"

#include <utility>

namespace everglow::cuda {

/// C = or += A B, and room for what its scheme may want. A filled operand is a copy whose rows end in zeros, to whole sizes.
struct LayerProduct {
  Matrix a, b, c;
  bool a_filled = false, b_filled = false;
  void *room_a = nullptr, *room_b = nullptr, *room_c = nullptr;
  void* wide = nullptr;  // of C in f32
  bool accumulate = false;
  bool leaves_rows = true;  // rows of C may be left to multiply_rest
};

/// As it is where cuBLASLt could not read what is given at all.
plan::OddScheme scheme_of(const LinearQuery& query, const LayerProduct& product);

/// What is to be copied before, or after, in one launch.
class Moves {
 public:
  void add(const Matrix& from, const Matrix& to) { all_[count_++] = {from, to}; }
  void start(cudaStream_t stream) { move(taken(), stream); }
  /// All, for whoever starts them with something else: none are left.
  std::span<const Move> taken() { return {all_.data(), std::exchange(count_, 0)}; }

 private:
  std::array<Move, most_moves> all_{};
  std::size_t count_ = 0;
};

/// A, B and C of the library's product; copies of A and B are added to `moves`.
struct Prepared {
  Matrix a, b, c;
};
Prepared prepare(const LayerProduct& product, const plan::OddScheme& scheme, Moves& moves);

/// Copies C from where the library put it, with the terms of a rest of k, and starts `moves` beside it.
void finish(const LayerProduct& product, const plan::OddScheme& scheme, const Prepared& prepared, Moves& moves,
            cudaStream_t stream);

/// Starts `moves`, and beside them the columns and rows of C that a scheme left over, which need nothing of them. `sums`, where it
/// is given, are of the rows of the operand that lies along them, and get those of its rest.
void start_with_rest(const LayerProduct& product, const plan::OddScheme& scheme, const Matrix& sums_of_a, const Matrix& sums_of_b,
                     Moves& moves, cudaStream_t stream);

/// Multiplies what was prepared, by the library or else plainly.
void multiply(const Context& context, const Prepared& prepared, bool accumulate);

/// c = or += a b by whoever takes it, in parts where that pays, with no room for copies.
void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace everglow::cuda
