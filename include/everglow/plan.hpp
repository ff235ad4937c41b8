// What every plan has in common: options, packed weights, and the explanation of the choice that was made.
#pragma once

#include <everglow/export.hpp>
#include <everglow/runtime.hpp>
#include <everglow/tensor.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace everglow {

/// How f32 products are computed. On a CPU tf32 is the same as ieee.
enum class Math : std::uint8_t { ieee, tf32 };

struct PlanOptions {
  int threads = 0;                     ///< CPU threads; 0: EVERGLOW_THREADS, else the cores this process may use
  std::string force{};                 ///< name of the only row that may run; throws where it declines
  std::vector<std::string> exclude{};  ///< names of rows that must not run
  bool deterministic = false;          ///< the same bits for any thread count, batch and number of steps
  Math math = Math::ieee;
  bool advice = true;                   ///< explain() looks for sizes that pay, which takes it some milliseconds
  std::int64_t tile_m = 0, tile_n = 0;  ///< explain products with this tile; it changes no row and no result. 0: none
};

/// Weights in the layout that one row likes, in memory of the caller, the same way in every layer: `bytes` is u8, dense, of at
/// least plan.packed_bytes() elements on an address that is a multiple of 64 (a Buffer's is); plan.pack fills `bytes` and `key`.
/// After an optimiser step the caller packs again. A key of another row or description throws.
struct PackedWeights {
  TensorView bytes{};
  std::uint64_t key = 0;
};

/// One row of the kernel table: did it accept, and if not, why.
struct ExplanationRow {
  std::string name{};
  bool taken = false;
  std::string reason{};
};

/// A tensor of a product as BLAS sees it.
struct ExplanationOperand {
  std::string role{};                ///< a, b, c
  std::string tensor{};              ///< weight, x, y, dy, dx, dweight, ...
  std::int64_t leading_bytes = 0;    ///< from one of its rows to the next
  std::int64_t alignment_bytes = 0;  ///< largest power of two that divides these, at most 128
};

/// m x n of the result that one thread block (CPU: one call of the micro-kernel) makes.
struct ExplanationTile {
  std::int64_t m = 0, n = 0;
};

/// One matrix product of the layer in the column-major (cuBLAS) view, C[m, n] = op(A) op(B), k summed.
struct ExplanationGemm {
  std::string pass{};  ///< forward, activation_gradient, weight_gradient
  std::string name{};  ///< linear, input, recurrent, classifier, ...
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t layer = 0, direction = 0;
  std::int64_t count = 1;  ///< how often it runs: once a step, or once for each batch and head
  bool transpose_a = false, transpose_b = false;
  std::vector<ExplanationOperand> operands{};
  double arithmetic_intensity = 0;  ///< FLOP a byte where every operand moves once
  double ridge = 0;                 ///< FLOP a byte at which the device's arithmetic and memory take equally long
  std::string bound{};              ///< math, memory: by intensity and ridge
  ExplanationTile tile{};           ///< what the next four are of: the one asked for, else the device's largest
  std::int64_t tiles = 0;
  double tile_efficiency = 0;  ///< share of the tiles' area that is result
  double waves = 0;            ///< tiles / (units x tiles a unit holds at once)
  double wave_efficiency = 0;
  ExplanationTile chosen_tile{};     ///< the tile predicted to be fastest, or the one that the row uses
  std::int64_t split_k = 1;          ///< parts of k that are made side by side and added
  std::int64_t alignment_bytes = 0;  ///< smallest of the operands
  double time_us = 0;                ///< of one of `count`
  double floor_us = 0;               ///< the same at full rate and bandwidth
  std::string algorithm{};           ///< what a library says it will take, in its own words; empty: nothing is known
  std::string source{};              ///< predicted (a vendor's choice is guessed) or chosen (by a row of ours)
};

/// A change of one size, or of the bytes between rows of that size, that makes the layer faster. Times are of the same useful rows
/// before and after.
struct ExplanationAdvice {
  std::string kind{};       ///< size, stride (rows of `from` elements stand `to` elements apart)
  std::string dimension{};  ///< the field of the description or of the sizes
  std::int64_t from = 0, to = 0;
  double time_us_before = 0, time_us_after = 0;
  double gain = 1;  ///< before / after
  std::string reason{};
};

/// Where the recurrent matrix of one layer and direction can stay for the whole sequence, and what a step costs there.
struct ExplanationResidency {
  bool resident = false;
  std::vector<std::string> where{};  ///< registers, shared_memory, cluster, grid, l2
  std::int64_t bytes = 0;            ///< of the recurrent matrix
  std::int64_t groups = 0;           ///< copies of it, each with its part of the batch
  std::int64_t blocks = 0;           ///< thread blocks (CPU: cores) of one group
  std::int64_t units_per_block = 0;  ///< hidden units that each of them keeps
  std::int64_t largest_hidden = 0;   ///< that stays resident with this cell, dtype and device
  double hand_off_us = 0, broadcast_us = 0, arithmetic_us = 0;
  double step_us = 0;        ///< their sum, or that of a step that reads the matrix again
  double step_floor_us = 0;  ///< arithmetic at full rate
  std::string reason{};
};

/// Another library's rule for these sizes.
struct ExplanationPeer {
  std::string name{};  ///< cudnn_persist_static, cudnn_persist_dynamic, pytorch
  bool eligible = false;
  std::string reason{};
};

/// One algorithm for the same result.
struct ExplanationAlgorithm {
  std::string name{};      ///< standard, flash1, flash2
  std::int64_t bytes = 0;  ///< device memory that it moves, forward
  double flops = 0;
  double time_us = 0;  ///< forward
  double backward_time_us = 0;
  ExplanationTile tile{};                             ///< queries x keys
  std::int64_t shared_bytes = 0, register_bytes = 0;  ///< of one thread block
  std::int64_t blocks = 0;
  double waves = 0;
  std::int64_t splits = 1;  ///< parts of the keys that are made side by side
  std::string formula{};    ///< of `bytes`
};

/// A call of the layer: forward, activation_gradient and weight_gradient of a linear layer, else forward and backward.
struct ExplanationPass {
  std::string name{};
  double time_us = 0;
};

/// What plan.explain() returns. The JSON of `everglow plan` has the same names.
struct Explanation {
  std::string layer{};
  std::string device{};
  std::string dtype{};
  std::string figures{};               ///< where the device's numbers come from: "data sheet", "measured", "estimated" or a file
  std::string kernel{};                ///< the row that runs; empty: none accepts, and the prediction is a vendor library's
  std::vector<ExplanationRow> rows{};  ///< all rows in order
  std::vector<ExplanationGemm> gemms{};
  std::optional<ExplanationResidency> residency{};  ///< recurrent alone
  std::vector<ExplanationPeer> peers{};             ///< recurrent alone
  std::vector<ExplanationAlgorithm> algorithms{};   ///< attention alone
  std::vector<ExplanationAdvice> advice{};          ///< best first
  std::vector<ExplanationPass> passes{};            ///< linear, recurrent and attention alone; their sum is time_us
  double time_us = 0;                               ///< predicted: all passes that the description asks for
  double floor_us = 0;                              ///< no implementation can be faster
  std::int64_t alignment_needed = 0;                ///< bytes that rows of operands must be multiples of for full speed; 0: any do
};

/// Bits of `status`, an optional u32 [1] (in an i32 view) on the layer's device for what a run finds too late to throw. A run only
/// ORs into it; the caller writes 0 before the first. On a CPU such faults throw at once, so no bit is ever set there.
inline constexpr std::uint32_t status_lengths = 1;  ///< a length or a start of a sequence was out of range and was clamped
inline constexpr std::uint32_t status_waited = 2;   ///< a bounded wait between thread blocks ran out: results are not valid
inline constexpr std::uint32_t status_indices = 4;  ///< an index or a target was out of range and was left out

/// Waits for the stream, which is one of the status' device, and sets the status to 0. Throws Error(invalid_argument) where only
/// lengths and indices were out of range, Error(device) for other bits; nothing where no bit is set.
EVERGLOW_API void check_status(const TensorView& status, const Stream& stream = {});

/// The rows of a layer (linear, recurrent, attention, softmax, embedding, loss, pointwise, adam), in order; else throws.
EVERGLOW_API std::vector<std::string> kernels(std::string_view layer, DeviceKind device);

/// CPU threads of a plan whose options name none: EVERGLOW_THREADS (throws where it is no count), else the cores it may use.
EVERGLOW_API int default_threads();

/// "0.1.0"
EVERGLOW_API std::string_view version() noexcept;

}  // namespace everglow
