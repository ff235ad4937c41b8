// The f32 linear rows of a CPU. Both run the same three products, activation and bias gradient; they differ in who may multiply:
// oneDNN where it is worth its call, or our micro-kernel alone. Packed weights are always multiplied by our micro-kernel.
#include "core/arena.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "cpu/linear_kernels.hpp"
#include "cpu/rows.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <cstring>

namespace everglow::cpu {
namespace {

constexpr std::int64_t sum_rows = 256;     // rows of one partial bias gradient: fixed, so that no sum depends on threads
constexpr std::int64_t sum_columns = 128;  // columns of one task of the gradient
constexpr std::int64_t packed_rows = 224;  // rows of one task of a product with packed weights
constexpr std::int64_t small = 1 << 14;    // elements that one thread handles sooner than two can meet
constexpr double grain = 1 << 18;          // multiply-adds that are worth a thread

const LinearKernels& kernels_of(Isa isa) {
  return select(isa, portable::linear_kernels, avx2::linear_kernels, avx512::linear_kernels);
}

const float* floats(const ConstTensorView& view) { return static_cast<const float*>(view.data); }
float* floats(const TensorView& view) { return static_cast<float*>(view.data); }

/// The scratch of a run, and its size from the same code.
struct Scratch {
  float* dz = nullptr;    // [batch, ld], ld a multiple of a cache line
  float* sums = nullptr;  // [parts, outputs]
  std::int64_t ld = 0;
  std::size_t bytes = 0;
  Scratch(const LinearQuery& q, std::int64_t batch, void* workspace) {
    Arena arena(workspace);
    const auto& d = q.description;
    ld = (d.outputs + 15) / 16 * 16;
    if (d.training && d.activation != Activation::none) dz = arena.take<float>(batch * ld);
    if (d.training) sums = arena.take<float>((batch + sum_rows - 1) / sum_rows * d.outputs);
    bytes = arena.bytes();
  }
};

/// Packed weights: W for the forward product, and Wᵀ for the activation gradient where the plan trains.
struct Packed {
  std::size_t backward = 0;  // offset in bytes
  std::size_t bytes = 0;
  explicit Packed(const LinearQuery& q) {
    const auto& d = q.description;
    backward = (packed_matrix_bytes(q.isa, d.inputs, d.outputs) + 63) / 64 * 64;
    bytes = d.training ? backward + packed_matrix_bytes(q.isa, d.outputs, d.inputs) : backward;
  }
};

Footprint footprint(const LinearQuery& q) {
  return {.workspace = Scratch(q, q.sizes.batch, nullptr).bytes, .reserve = 0, .packed = Packed(q).bytes};
}

void pack(const LinearQuery& q, const ConstTensorView& weight, void* packed, const Stream&) {
  const auto& d = q.description;
  const bool outputs_first = d.layout == LinearLayout::outputs_inputs;
  auto* bytes = static_cast<std::byte*>(packed);
  std::memset(bytes, 0, Packed(q).bytes);
  pack_matrix(q.isa, outputs_first, floats(weight), weight.stride(0), d.inputs, d.outputs, bytes);
  bytes += Packed(q).backward;
  if (d.training) pack_matrix(q.isa, !outputs_first, floats(weight), weight.stride(0), d.outputs, d.inputs, bytes);
}

/// x · packed, where C begins with `bias`; `finish` sees each block that is complete.
struct PackedProduct {
  std::int64_t m, n, k;
  const float* a;
  std::int64_t lda;
  const std::byte* packed;
  float* c;
  std::int64_t ldc;
  const float* bias;
  GemmFinish finish;
};

void multiply_packed(const LinearQuery& q, const PackedProduct& p) {
  const std::int64_t panel = packed_panel_columns(q.isa), panels = (p.n + panel - 1) / panel;
  if (p.m == 0 || p.n == 0) return;
  const double worth = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) / grain;
  const auto team = static_cast<int>(std::clamp(worth, 1.0, static_cast<double>(q.threads)));
  const std::int64_t column_parts = std::min<std::int64_t>(team, panels);
  const std::int64_t wanted = std::min(p.m, (team + column_parts - 1) / column_parts);
  const std::int64_t row_parts = std::max((p.m + packed_rows - 1) / packed_rows, wanted);
  parallel_tasks(team, column_parts * row_parts, [&](std::int64_t task) {
    const std::int64_t row = task / column_parts, column = task % column_parts;
    const std::int64_t i0 = p.m * row / row_parts, i1 = p.m * (row + 1) / row_parts;
    const std::int64_t j0 = panels * column / column_parts * panel;
    const std::int64_t j1 = std::min(p.n, panels * (column + 1) / column_parts * panel);
    if (i0 == i1 || j0 >= j1) return;
    for (std::int64_t i = i0; p.bias != nullptr && i < i1; ++i)
      std::memcpy(p.c + i * p.ldc + j0, p.bias + j0, static_cast<std::size_t>(j1 - j0) * sizeof(float));
    gemm_packed(q.isa, i1 - i0, p.k, p.n, p.a + i0 * p.lda, p.lda, p.packed, j0, j1, p.c + i0 * p.ldc, p.ldc, p.bias != nullptr);
    if (p.finish.run != nullptr) p.finish.run(p.finish.context, i0, i1, j0, j1);
  });
}

/// What the activation after a product needs.
struct Finish {
  const LinearKernels* kernels;
  ActivationKind kind;
  const float* z;
  std::int64_t ldz;
  float* y;
  std::int64_t ldy;
};

void finish_block(const void* context, std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
  const auto& f = *static_cast<const Finish*>(context);
  f.kernels->activate({.kind = f.kind,
                       .rows = i1 - i0,
                       .columns = j1 - j0,
                       .z = f.z + i0 * f.ldz + j0,
                       .ldz = f.ldz,
                       .out = f.y + i0 * f.ldy + j0,
                       .ldout = f.ldy});
}

GemmContext context_of(const LinearQuery& q, bool library) { return {.threads = q.threads, .isa = q.isa, .library = library}; }

void forward(const LinearQuery& q, const LinearForward& t, bool library) {
  const auto& d = q.description;
  const TensorView& z = t.preactivation.given() ? t.preactivation : t.y;
  const Finish finish{&kernels_of(q.isa), static_cast<ActivationKind>(d.activation), floats(z), z.stride(0), floats(t.y),
                      t.y.stride(0)};
  GemmFinish call;
  if (d.activation != Activation::none || t.preactivation.given()) call = {finish_block, &finish};
  const float* bias = t.bias.given() ? floats(t.bias) : nullptr;
  if (t.packed != nullptr) {
    multiply_packed(q, {t.x.size(0), d.outputs, d.inputs, floats(t.x), t.x.stride(0),
                        static_cast<const std::byte*>(t.packed->bytes.data), floats(z), z.stride(0), bias, call});
    return;
  }
  gemm({.transpose_b = d.layout == LinearLayout::outputs_inputs,
        .m = t.x.size(0),
        .n = d.outputs,
        .k = d.inputs,
        .a = floats(t.x),
        .lda = t.x.stride(0),
        .b = floats(t.weight),
        .ldb = t.weight.stride(0),
        .c = floats(z),
        .ldc = z.stride(0),
        .bias = bias,
        .finish = call},
       context_of(q, library));
}

/// dz = dy · act'(z), unless dz is dy; and the bias gradient: partial sums of a fixed number of rows, added in order.
void elementwise_gradient(const LinearQuery& q, const LinearBackward& t, const Scratch& scratch) {
  const auto& d = q.description;
  const std::int64_t batch = t.dy.size(0), parts = (batch + sum_rows - 1) / sum_rows;
  const std::int64_t column_parts = (d.outputs + sum_columns - 1) / sum_columns;
  if (scratch.dz == nullptr && !t.dbias.given()) return;
  const int threads = batch * d.outputs < small ? 1 : q.threads;
  const LinearKernels& kernels = kernels_of(q.isa);
  parallel_tasks(threads, parts * column_parts, [&](std::int64_t task) {
    const std::int64_t part = task / column_parts, i = part * sum_rows, j = task % column_parts * sum_columns;
    kernels.gradient({.kind = static_cast<ActivationKind>(d.activation),
                      .rows = std::min(sum_rows, batch - i),
                      .columns = std::min(sum_columns, d.outputs - j),
                      .z = scratch.dz != nullptr ? floats(t.preactivation) + i * t.preactivation.stride(0) + j : nullptr,
                      .ldz = scratch.dz != nullptr ? t.preactivation.stride(0) : 0,
                      .dy = floats(t.dy) + i * t.dy.stride(0) + j,
                      .lddy = t.dy.stride(0),
                      .out = scratch.dz != nullptr ? scratch.dz + i * scratch.ld + j : nullptr,
                      .ldout = scratch.ld,
                      .sums = t.dbias.given() ? scratch.sums + part * d.outputs + j : nullptr});
  });
  if (!t.dbias.given()) return;
  float* dbias = floats(t.dbias);
  if (!t.accumulate || mutant("linear.cpu_dbias_forgets")) std::fill(dbias, dbias + d.outputs, 0.0F);
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t j = 0; j < d.outputs; ++j) dbias[j] += flipped("linear.cpu_dbias_sign", scratch.sums[part * d.outputs + j]);
}

void backward(const LinearQuery& q, const LinearBackward& t, void* workspace, bool library) {
  const auto& d = q.description;
  const std::int64_t batch = t.dy.size(0);
  const bool outputs_first = d.layout == LinearLayout::outputs_inputs;
  const Scratch scratch(q, batch, workspace);
  elementwise_gradient(q, t, scratch);
  const bool own = scratch.dz != nullptr && !mutant("linear.cpu_slope_left_out");
  const float* dz = own ? scratch.dz : floats(t.dy);
  const std::int64_t ldz = own ? scratch.ld : t.dy.stride(0);
  const GemmContext context = context_of(q, library);
  if (t.dx.given() && t.packed != nullptr)
    multiply_packed(q, {batch,
                        d.inputs,
                        d.outputs,
                        dz,
                        ldz,
                        static_cast<const std::byte*>(t.packed->bytes.data) + Packed(q).backward,
                        floats(t.dx),
                        t.dx.stride(0),
                        nullptr,
                        {}});
  else if (t.dx.given())
    gemm({.transpose_b = !outputs_first,
          .m = batch,
          .n = d.inputs,
          .k = d.outputs,
          .a = dz,
          .lda = ldz,
          .b = floats(t.weight),
          .ldb = t.weight.stride(0),
          .c = floats(t.dx),
          .ldc = t.dx.stride(0)},
         context);
  if (!t.dweight.given()) return;
  const float* x = floats(t.x);
  gemm({.transpose_a = true,
        .m = outputs_first ? d.outputs : d.inputs,
        .n = outputs_first ? d.inputs : d.outputs,
        .k = batch,
        .a = outputs_first ? dz : x,
        .lda = outputs_first ? ldz : t.x.stride(0),
        .b = outputs_first ? x : dz,
        .ldb = outputs_first ? t.x.stride(0) : ldz,
        .c = floats(t.dweight),
        .ldc = t.dweight.stride(0),
        .accumulate = t.accumulate && !mutant("linear.cpu_dweight_forgets")},
       context);
}

Verdict accepts_dtype(const LinearQuery& q) { return accept_f32(q.description.dtype); }

Verdict accepts_onednn(const LinearQuery& q) {
  if (!has_onednn()) return decline("oneDNN is not built");
  if (q.options.deterministic) return decline("deterministic: the order of oneDNN's sums is not fixed");
  if (q.isa != best_isa()) return decline(name(q.isa), " is asked for, oneDNN would choose for itself");
  return accepts_dtype(q);
}

template <bool library>
constexpr LinearRow row_of(std::string_view name, Verdict (*accepts)(const LinearQuery&)) {
  return {.name = name,
          .accepts = accepts,
          .footprint = footprint,
          .forward = [](const LinearQuery& q, const LinearForward& t, void*, const Stream&) { forward(q, t, library); },
          .backward = [](const LinearQuery& q, const LinearBackward& t, void* workspace,
                         const Stream&) { backward(q, t, workspace, library); },
          .pack = pack};
}

}  // namespace

const LinearRow linear_onednn = row_of<true>("onednn.linear", accepts_onednn);
const LinearRow linear = row_of<false>("cpu.linear", accepts_dtype);

}  // namespace everglow::cpu
