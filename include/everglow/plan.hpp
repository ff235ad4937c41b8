// What every plan has in common: options, packed weights, and the explanation of the choice that was made.
#pragma once

#include <everglow/export.hpp>
#include <everglow/runtime.hpp>
#include <everglow/tensor.hpp>

#include <cstdint>
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

/// One matrix product of the layer in the column-major (cuBLAS) view.
struct ExplanationGemm {
  std::string pass{};  ///< forward, activation_gradient, weight_gradient
  std::string name{};  ///< linear, input, recurrent, classifier, ...
  std::int64_t m = 0, n = 0, k = 0;
};

/// What plan.explain() returns. The JSON of `everglow plan` has the same names.
struct Explanation {
  std::string layer{};
  std::string device{};
  std::string dtype{};
  std::string kernel{};                ///< the row that runs
  std::vector<ExplanationRow> rows{};  ///< all rows in order
  std::vector<ExplanationGemm> gemms{};
};

/// Bits of `status`, an optional u32 [1] (in an i32 view) on the layer's device for what a run finds too late to throw. A run only
/// ORs into it; the caller writes 0 before the first. On a CPU such faults throw at once, so no bit is ever set there.
inline constexpr std::uint32_t status_lengths = 1;  ///< a length or a start of a sequence was out of range and was clamped
inline constexpr std::uint32_t status_waited = 2;   ///< a bounded wait between thread blocks ran out: results are not valid

/// Waits for the stream, which is one of the status' device, and sets the status to 0. Throws Error(invalid_argument) where only
/// lengths were out of range, Error(device) for other bits; nothing where no bit is set.
EVERGLOW_API void check_status(const TensorView& status, const Stream& stream = {});

/// The rows of one layer ("linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"), in order.
EVERGLOW_API std::vector<std::string> kernels(std::string_view layer, DeviceKind device);

/// CPU threads of a plan whose options name none: EVERGLOW_THREADS, else the cores this process may use.
EVERGLOW_API int default_threads();

/// "0.1.0"
EVERGLOW_API std::string_view version() noexcept;

}  // namespace everglow
