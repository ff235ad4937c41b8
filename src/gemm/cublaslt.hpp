// Matrix products of cuBLASLt, which is opened when it is first asked for and never linked. Sums are f32: parts of a split k are
// added in f32 too. Column-major, as in BLAS: D[m, n] = op(A)[m, k] op(B)[k, n] and an epilogue.
#pragma once

#include <everglow/plan.hpp>

#include "gemm/tuned.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace everglow::cublaslt {

/// Usable, or why not: which file was looked for.
BackendStatus status();

enum class Epilogue : std::uint8_t {
  none,
  bias,
  relu,
  relu_bias,
  gelu,  // the tanh form
  gelu_bias,
  gelu_aux,  // what the activation reads is stored too
  gelu_aux_bias,
  sum_of_a,  // bias[m] = sums of op(A) over k
  sum_of_b   // bias[n] = sums of op(B) over k
};

/// A form of product: everything that the choice of an algorithm may depend on but the addresses' alignment.
struct Form {
  std::int64_t m = 0, n = 0, k = 0;  // at least 1
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldd = 0, ld_aux = 0;
  DType in = DType::f32, out = DType::f32;
  Math math = Math::ieee;
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;  // D += ...
  friend auto operator<=>(const Form&, const Form&) = default;
};

struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* bias = nullptr;  // of the type of D; read, or written by the sums
  void* aux = nullptr;   // of the type of D
};

/// Scratch that every product may use: what NVIDIA's guide asks for on Hopper.
inline constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

/// cuBLASLt counts rows and columns in 32 bits.
inline constexpr std::int64_t most_size = (std::int64_t{1} << 31) - 1;

/// On a stream (cudaStream_t) of the current card, `card`. False, with nothing started, where cuBLASLt has no algorithm for the
/// form. The algorithm is chosen once for each form, alignment and card, and kept: what tuned::file() holds, which a process reads
/// once, else what cuBLASLt's heuristic names first.
bool multiply(int card, const Form& form, const Operands& operands, void* workspace, void* stream);

/// What multiply would take for operands on 256 bytes: "algorithm 66, tile 20, stages 36, split-k 1 (cuBLASLt 13.0.2)", with
/// ", measured" before the last where it was. Empty where there is none or the library is missing.
std::string algorithm_text(int card, const Form& form);

/// While one lives, each product of its thread whose algorithm was not measured yet is measured: each of the heuristic's candidates
/// runs some times, and the fastest is kept for the process. The result of the product is as ever, but what it adds to is added to
/// many times. The stream is waited for.
class Tuning {
 public:
  Tuning();
  ~Tuning();
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;

  /// Writes what was measured to tuned::file(), if there is one; how many products that were. Throws Error(io).
  int keep();
  void add(const std::string& key, const tuned::Choice& choice) { measured_.insert_or_assign(key, choice); }

 private:
  tuned::Choices measured_;
};

/// Forgets all choices of the process, so that the file is read again: as a new process is.
void forget_choices();

}  // namespace everglow::cublaslt
