// What stands beside a library's product of odd sizes: copies between rows of any alignment, and the narrow rest. Every function
// starts work on the stream of the card that is current and returns.
#pragma once

#include "cuda/common/matrix.hpp"

#include <array>
#include <span>

namespace everglow::cuda {

/// to = from, bit by bit, and zeros in the columns and rows that `to` has more. Of one dtype, elements of a row side by side.
struct Move {
  Matrix from, to;
};
inline constexpr std::size_t most_moves = 4;
/// All in one launch.
void move(std::span<const Move> moves, cudaStream_t stream);
/// Whether move takes them.
bool can_move(const Matrix& from, const Matrix& to);

/// Rests are narrower than 16 bytes. Moves that have nothing to do with one run in its launch.
/// c = act(a b + bias) for a c of few columns, a warp for each row; z, where it is given, is what the activation reads. Fast where
/// rows of a and columns of b lie side by side on 16 bytes. a, b and bias of one dtype; c and z of that or f32.
struct NarrowProduct {
  Matrix a, b, bias, c, z;
  Activation activation = Activation::none;
};
void multiply_narrow(const NarrowProduct& product, std::span<const Move> moves, cudaStream_t stream);

/// c = or += aᵀ b for an a of few columns, and sums = sums of the columns of a where it is given: a and b have as many rows, which
/// are summed by lanes in an order that is fixed. a, b of one dtype; c and sums of that or f32.
struct WeightedSums {
  Matrix a, b, c, sums;
  bool accumulate = false;
};
void sum_weighted(const WeightedSums& sums, std::span<const Move> moves, cudaStream_t stream);

/// c = wide + a b, rounded once, for an a of few columns; wide is f32, and its rows end in whole
/// 16 bytes.
struct NarrowTerms {
  Matrix wide, a, b, c;
};
void add_narrow(const NarrowTerms& terms, cudaStream_t stream);

}  // namespace everglow::cuda
