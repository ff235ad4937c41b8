// Which recurrent kernels cuDNN and PyTorch allow. Sources: cuDNN developer guide (RNN algorithms), NVIDIA's recurrent layers
// guide, PyTorch aten/src/ATen/native/cudnn/RNN.cpp (use_persist_common_heuristics, use_persist_device_heuristics,
// use_rnn_persist_small_h).
#include "plan/recurrent.hpp"

#include "core/recurrent.hpp"
#include "core/text.hpp"

#include <algorithm>

namespace everglow::plan {
namespace {

struct Question {
  const RecurrentDescription& d;
  const RecurrentSizes& sizes;
  const DeviceFigures& f;
};

/// Empty where nothing speaks against any persistent kernel of cuDNN.
std::string against_persistence(const Question& q) {
  if (q.f.capability == 0) return "cuDNN needs a GPU";
  if (q.f.capability < 60) return "compute capability 6.0 is needed";
  if (q.d.cell == Cell::gru_reset_before) return "cuDNN has no GRU that resets before the product";
  if (q.d.projection > 0) return "a projection runs on the standard algorithm alone";
  if (q.d.lengths) return "lengths per row run on the standard algorithm alone";
  if (q.d.resets) return "cuDNN has no resets";
  if (q.d.dtype == DType::bf16) return "cuDNN has no persistent kernel for bf16";
  constexpr std::int64_t most_steps = 65535;
  if (q.sizes.steps > most_steps) return text(q.sizes.steps, " steps: at most ", most_steps);
  return {};
}

ExplanationPeer persist_static(const Question& q) {
  ExplanationPeer out{.name = "cudnn_persist_static", .reason = against_persistence(q)};
  if (!out.reason.empty()) return out;
  constexpr std::int64_t most_hidden = 1024, unit = 32, rows = 8;
  if (q.d.dtype != DType::f16)
    out.reason = text("for FP16 data only, got ", name(q.d.dtype));
  else if (q.d.hidden > most_hidden)
    out.reason = text("hidden ", q.d.hidden, ": at most ", most_hidden);
  else if (q.d.hidden % unit != 0)
    out.reason = text("hidden ", q.d.hidden, " is no multiple of ", unit);
  else if (q.sizes.batch % rows != 0)
    out.reason = text("batch ", q.sizes.batch, " is no multiple of ", rows);
  else if (!fits_on_chip(q.d, q.f, static_cast<std::int64_t>(size_of(q.d.dtype))))
    out.reason = text("the recurrent matrix does not fit the registers and shared memory of ", q.f.units, " SMs");
  else
    out.eligible = true;
  if (!out.eligible) return out;
  out.reason = text("f16, hidden ", q.d.hidden, " <= ", most_hidden, " and a multiple of ", unit, ", batch a multiple of ", rows);
  // NVIDIA's guide: above 96 rows forward or 32 backward a larger power of two may be needed.
  const bool large = q.sizes.batch > 96 || (q.d.training && q.sizes.batch > 32);
  if (large && q.sizes.batch % 32 != 0) out.reason += "; a batch of this size may have to be a multiple of 32";
  return out;
}

ExplanationPeer persist_dynamic(const Question& q) {
  ExplanationPeer out{.name = "cudnn_persist_dynamic", .reason = against_persistence(q)};
  if (!out.reason.empty()) return out;
  if (!fits_on_chip(q.d, q.f, static_cast<std::int64_t>(size_of(q.d.dtype)))) {
    out.reason = text("the recurrent matrix does not fit the registers and shared memory of ", q.f.units, " SMs");
    return out;
  }
  out.eligible = true;
  out.reason = text("compute capability ", q.f.capability / 10, ".", q.f.capability % 10,
                    " on Linux, a plan compiled for each batch and dtype (NVRTC)");
  return out;
}

/// Why PyTorch's use_persist_*_heuristics say no; empty where they say yes.
std::string against_pytorch_static(const Question& q) {
  const RecurrentDescription& d = q.d;
  const std::int64_t B = q.sizes.batch, T = q.sizes.steps;
  if (d.dtype != DType::f16) return text("the dtype is ", name(d.dtype), ", not f16");
  if (d.layers != 1) return text(d.layers, " layers, not 1");
  if (d.hidden > 1024) return text("hidden ", d.hidden, " > 1024");
  if (d.bidirectional) return "it is bidirectional";
  if (d.hidden % 128 != 0) return text("hidden ", d.hidden, " is no multiple of 128");
  if (d.inputs % 128 != 0) return text("inputs ", d.inputs, " is no multiple of 128");
  if (q.f.capability == 75) return "sm_75 is left out";
  if (q.f.capability < 70) return "below sm_70";
  if (q.f.capability < 75) {
    if (!((B % 16 == 0 && B != 80 && B != 112) || B == 8))
      return text("batch ", B, ": on sm_70 8 or a multiple of 16 but 80 and 112");
    if ((T >= 40 && B <= 128) || (T >= 20 && B <= 96) || (T >= 10 && B <= 32)) return {};
    return text("batch ", B, " with ", T, " steps: on sm_70 at most 128 from 40 steps on, 96 from 20, 32 from 10");
  }
  if (q.f.units < 98) return text(q.f.units, " SMs < 98");
  if (q.f.capability % 10 == 6) return "sm_86 is left out";
  if (d.cell == Cell::gru) return "a GRU is left out from sm_80 on";
  if (B % 8 != 0 || B > 128) return text("batch ", B, ": a multiple of 8, at most 128");
  if (d.cell != Cell::lstm && B >= 96 && d.hidden >= 896) return text("batch ", B, " >= 96 with hidden ", d.hidden, " >= 896");
  return {};
}

bool small_hidden(const Question& q) {
  if (q.d.dtype == DType::f64 || q.f.capability < 60) return false;
  const bool plain = recurrent::gate_count(q.d.cell) == 1;
  const std::int64_t forward = plain ? 384 : 192, backward = plain ? 256 : 128;
  return q.d.hidden <= (q.d.training ? backward : forward);
}

ExplanationPeer pytorch(const Question& q) {
  ExplanationPeer out{.name = "pytorch"};
  if (q.f.capability == 0) {
    out.reason =
        q.d.cell == Cell::lstm ? "PyTorch picks oneDNN's LSTM on a CPU" : "PyTorch picks its loop of small operations on a CPU";
    return out;
  }
  if (q.d.cell == Cell::gru_reset_before) {
    out.reason = "PyTorch has no GRU that resets before the product";
    return out;
  }
  const auto standard = [&](const std::string& why) {
    out.reason = "PyTorch picks STANDARD: " + why;
    return out;
  };
  if (q.d.projection > 0) return standard("it has a projection");
  if (q.d.lengths) return standard("lengths make it a packed sequence");
  if (small_hidden(q)) {
    out.eligible = true;
    out.reason = text("PyTorch picks PERSIST_STATIC_SMALL_H: hidden ", q.d.hidden, ", whatever the batch");
    return out;
  }
  const std::string against = against_pytorch_static(q);
  if (!against.empty()) return standard(against);
  out.eligible = true;
  out.reason = text("PyTorch picks PERSIST_STATIC: f16, one layer and direction, hidden ", q.d.hidden, " <= 1024, batch ",
                    q.sizes.batch, ", ", q.sizes.steps, " steps");
  return out;
}

}  // namespace

std::vector<ExplanationPeer> recurrent_peers(const RecurrentDescription& description, const RecurrentSizes& sizes,
                                             const DeviceFigures& figures) {
  const Question question{description, sizes, figures};
  return {persist_static(question), persist_dynamic(question), pytorch(question)};
}

}  // namespace everglow::plan
