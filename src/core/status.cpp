// Reads what runs have left in a status.
#include <everglow/plan.hpp>

#include "core/check.hpp"

namespace everglow {

void check_status(const TensorView& status, const Stream& stream) {
  constexpr std::string_view where = "check_status";
  require_tensor(where, "status", status, {1}, DType::i32, status.device);
  require(stream.device == status.device, ErrorCode::type_mismatch, where, "stream: expected one of ", to_string(status.device),
          ", got one of ", to_string(stream.device));
  std::uint32_t bits = 0;
  const TensorView host(&bits, DType::i32, {1});
  copy(host, status, stream);
  stream.synchronize();
  if (bits == 0) return;
  std::string faults;
  const auto note = [&](std::uint32_t mask, std::string_view fault) {
    if ((bits & mask) != 0) faults += text(faults.empty() ? "" : "; ", fault);
  };
  note(status_lengths, "a length or start out of range, which was clamped");
  note(status_waited, "a wait between thread blocks that ran out, so that results are not valid");
  note(status_indices, "an index or a target out of range, which was left out");
  note(~(status_lengths | status_waited | status_indices), "bits that this version does not know");
  const bool only_arguments = (bits & ~(status_lengths | status_indices)) == 0;
  const ErrorCode code = only_arguments ? ErrorCode::invalid_argument : ErrorCode::device;
  const std::uint32_t came = bits;
  bits = 0;
  copy(status, host, stream);
  stream.synchronize();
  throw Error(code, where, text("expected no fault, got status ", came, ": ", faults));
}

}  // namespace everglow
