// An explanation whose costly half (products, times, advice) is made when somebody asks: making a plan stays cheap.
#pragma once

#include "core/dispatch.hpp"
#include "gemm/gemm.hpp"
#include "plan/gemm.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace everglow {

/// Threads may ask at the same time; the first makes it.
class Explained {
 public:
  Explained() = default;
  explicit Explained(Explanation choice) : state_(std::make_shared<State>()) { state_->explanation = std::move(choice); }
  /// fill(explanation) runs once.
  template <class Fill>
  const Explanation& get(const Fill& fill) const {
    std::call_once(state_->once, [&] { fill(state_->explanation); });
    return state_->explanation;
  }

 private:
  struct State {
    std::once_flag once;
    Explanation explanation;
  };
  std::shared_ptr<State> state_;
};

/// The device of a query as predictions of a row see it.
template <class AnyQuery>
plan::Machine machine_of(const AnyQuery& query, DType dtype, std::string_view kernel) {
  const bool ours = kernel.starts_with("cpu.") && kernel != "cpu.recurrent_stepwise";
  const bool asks = query.device.device.kind == DeviceKind::cpu && has_onednn() && query.isa == best_isa() && !ours &&
                    !query.options.deterministic && !kernel.starts_with("reference.");
  const int lanes = query.isa >= Isa::avx512 ? 16 : query.isa == Isa::avx2 ? 8 : 4;
  plan::Machine out = plan::machine_of(query.device.figures, {.dtype = dtype,
                                                              .math = query.options.math,
                                                              .threads = query.threads,
                                                              .reference = kernel.starts_with("reference."),
                                                              .library = asks && onednn_multiplies(dtype),
                                                              .library_f32 = asks && onednn_multiplies(DType::f32),
                                                              .pairs = query.isa == Isa::avx512_bf16,
                                                              .plain = kernel == "cuda.linear" || kernel == "cuda.loss",
                                                              .lanes = lanes,
                                                              .tile = {query.options.tile_m, query.options.tile_n}});
  out.advice = query.options.advice;
  return out;
}

/// The row alignment that products of this machine need, and whose they are: products of a row of ours are what runs; those of a
/// library are what we guess of it.
inline void mark_products(const plan::Machine& machine, Explanation& out) {
  out.alignment_needed = machine.tensor ? machine.alignment : 0;
  const bool ours = out.kernel.starts_with("cpu.") || out.kernel.starts_with("reference.") || out.kernel.starts_with("sm");
  for (ExplanationGemm& gemm : out.gemms) gemm.source = ours ? "chosen" : "predicted";
}

}  // namespace everglow
