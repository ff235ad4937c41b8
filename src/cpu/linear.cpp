// The linear rows of a CPU. Both run the same three products, activation and bias gradient; they differ in who may multiply: oneDNN
// where it is worth its call, or our micro-kernel alone. Packed weights are always multiplied by our micro-kernel.
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
constexpr std::int64_t small = 1 << 14;    // elements that one thread handles sooner than two can meet

const LinearKernels& kernels_of(Isa isa) {
  return select(isa, portable::linear_kernels, avx2::linear_kernels, avx512::linear_kernels);
}

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// A matrix as it lies in memory, from one of its elements on.
StoredOut stored(const TensorView& v, std::int64_t row, std::int64_t column) {
  auto* data = static_cast<std::byte*>(v.data) + (row * v.stride(0) + column * v.stride(1)) * bytes_of(v.dtype);
  return {data, static_cast<Element>(v.dtype), v.stride(0), v.stride(1)};
}
Stored stored(const ConstTensorView& v, std::int64_t row, std::int64_t column) {
  const auto* data = static_cast<const std::byte*>(v.data) + (row * v.stride(0) + column * v.stride(1)) * bytes_of(v.dtype);
  return {data, static_cast<Element>(v.dtype), v.stride(0), v.stride(1)};
}

/// A matrix for a product, turned so that its stored rows have no gaps between elements, where one of its sides is so.
struct Operand {
  ConstTensorView view;
  bool transposed;
  Operand(const ConstTensorView& v, bool transpose) : view(v), transposed(transpose) {
    if (view.size(1) == 1) view.strides[1] = 1;
    if (view.stride(1) != 1 && (view.stride(0) == 1 || view.size(0) == 1)) {
      view = view.transposed(0, 1);
      view.strides[1] = 1;
      transposed = !transposed;
    }
    if (view.size(0) == 1) view.strides[0] = std::max(view.stride(0), view.size(1));
  }
};

void set_a(Gemm& g, const ConstTensorView& view, bool transpose) {
  const Operand a(view, transpose);
  g.a = a.view.data, g.a_type = a.view.dtype, g.transpose_a = a.transposed;
  g.lda = a.view.stride(0), g.step_a = a.view.stride(1);
}
void set_b(Gemm& g, const ConstTensorView& view, bool transpose) {
  const Operand b(view, transpose);
  g.b = b.view.data, g.b_type = b.view.dtype, g.transpose_b = b.transposed;
  g.ldb = b.view.stride(0), g.step_b = b.view.stride(1);
}
void set_packed(Gemm& g, const LinearQuery& q, const PackedWeights& packed, std::size_t offset) {
  g.b = static_cast<const std::byte*>(packed.bytes.data) + offset, g.b_type = q.description.dtype, g.packed_b = true;
}
void set_c(Gemm& g, const TensorView& view) {
  g.c = view.data, g.c_type = view.dtype, g.ldc = view.stride(0), g.step_c = view.size(1) == 1 ? 1 : view.stride(1);
}

/// The scratch of a run, and its size from the same code. dy · act'(z) is f32, unless it is to be multiplied with 16 bits: by
/// oneDNN, or in pairs of bf16.
struct Scratch {
  TensorView dz;          // [batch, outputs], rows on cache lines; not given where it is dy
  float* sums = nullptr;  // [parts, outputs]
  std::size_t bytes = 0;
  Scratch(const LinearQuery& q, std::int64_t batch, bool library, void* workspace) {
    Arena arena(workspace);
    const auto& d = q.description;
    if (d.training && d.activation != Activation::none) {
      const bool narrow = library || (d.dtype == DType::bf16 && multiplies_bf16(q.isa));
      const DType dtype = narrow ? d.dtype : DType::f32;
      const std::int64_t line = Arena::alignment / bytes_of(dtype), ld = (d.outputs + line - 1) / line * line;
      dz = TensorView(arena.take<std::byte>(batch * ld * bytes_of(dtype)), dtype, {batch, d.outputs});
      dz.strides[0] = ld;
    }
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
    backward = (packed_matrix_bytes(q.isa, d.inputs, d.outputs, d.dtype) + 63) / 64 * 64;
    bytes = d.training ? backward + packed_matrix_bytes(q.isa, d.outputs, d.inputs, d.dtype) : backward;
  }
};

Footprint footprint(const LinearQuery& q, bool library) {
  return {.workspace = Scratch(q, q.sizes.batch, library, nullptr).bytes, .reserve = 0, .packed = Packed(q).bytes};
}

void pack(const LinearQuery& q, const ConstTensorView& weight, void* packed, const Stream&) {
  const auto& d = q.description;
  const bool outputs_first = d.layout == LinearLayout::outputs_inputs;
  auto* bytes = static_cast<std::byte*>(packed);
  std::memset(bytes, 0, Packed(q).bytes);
  const auto pack_one = [&](bool transpose, std::int64_t k, std::int64_t n, std::byte* to) {
    const Operand b(weight, transpose);
    pack_matrix(q.isa,
                {.transpose = b.transposed,
                 .data = b.view.data,
                 .dtype = b.view.dtype,
                 .stride = b.view.stride(0),
                 .step = b.view.stride(1),
                 .k = k,
                 .n = n},
                to);
  };
  pack_one(outputs_first, d.inputs, d.outputs, bytes);
  if (d.training) pack_one(!outputs_first, d.outputs, d.inputs, bytes + Packed(q).backward);
}

/// What the activation after a product needs.
struct Finish {
  const LinearKernels* kernels;
  ActivationKind kind;
  TensorView y;
};

void finish_block(const void* context, const GemmBlock& block) {
  const auto& f = *static_cast<const Finish*>(context);
  f.kernels->activate({.kind = f.kind,
                       .rows = block.rows,
                       .columns = block.columns,
                       .z = {block.values, static_cast<Element>(block.dtype), block.stride},
                       .out = stored(f.y, block.row, block.column)});
}

GemmContext context_of(const LinearQuery& q, bool library, bool prepares = false) {
  return {.threads = q.threads, .isa = q.isa, .library = library, .prepares = prepares};
}

void forward(const LinearQuery& q, const LinearForward& t, const GemmContext& by) {
  const auto& d = q.description;
  const bool keeps_z = t.preactivation.given();
  const Finish finish{&kernels_of(q.isa), static_cast<ActivationKind>(d.activation), t.y};
  Gemm product{.m = t.x.size(0), .n = d.outputs, .k = d.inputs};
  if (d.activation != Activation::none || keeps_z)
    product.finish = {finish_block, &finish, !keeps_z, static_cast<GemmActivation>(d.activation)};
  set_a(product, t.x, false);
  if (t.packed != nullptr)
    set_packed(product, q, *t.packed, 0);
  else
    set_b(product, t.weight, d.layout == LinearLayout::outputs_inputs);
  set_c(product, keeps_z ? t.preactivation : t.y);
  if (t.bias.given()) product.bias = t.bias.data, product.bias_type = t.bias.dtype, product.step_bias = t.bias.stride(0);
  gemm(product, by);
}

/// dz = dy · act'(z), unless dz is dy; and the bias gradient: partial sums of a fixed number of rows, added in order.
void elementwise_gradient(const LinearQuery& q, const LinearBackward& t, const Scratch& scratch) {
  const auto& d = q.description;
  const std::int64_t batch = t.dy.size(0), parts = (batch + sum_rows - 1) / sum_rows;
  const std::int64_t column_parts = (d.outputs + sum_columns - 1) / sum_columns;
  const bool own = scratch.dz.given();
  if (!own && !t.dbias.given()) return;
  const int threads = batch * d.outputs < small ? 1 : q.threads;
  const LinearKernels& kernels = kernels_of(q.isa);
  parallel_tasks(threads, parts * column_parts, [&](std::int64_t task) {
    const std::int64_t part = task / column_parts, i = part * sum_rows, j = task % column_parts * sum_columns;
    kernels.gradient({.kind = static_cast<ActivationKind>(d.activation),
                      .rows = std::min(sum_rows, batch - i),
                      .columns = std::min(sum_columns, d.outputs - j),
                      .z = own ? stored(t.preactivation, i, j) : Stored{},
                      .dy = stored(t.dy, i, j),
                      .out = own ? stored(scratch.dz, i, j) : StoredOut{},
                      .sums = t.dbias.given() ? scratch.sums + part * d.outputs + j : nullptr});
  });
  if (t.dbias.given())
    kernels.bias_gradient({.parts = parts,
                           .columns = d.outputs,
                           .sums = scratch.sums,
                           .accumulate = t.accumulate,
                           .out = {t.dbias.data, static_cast<Element>(t.dbias.dtype), 0, t.dbias.stride(0)}});
}

void input_gradient(const LinearQuery& q, const LinearBackward& t, const ConstTensorView& dz, const GemmContext& by) {
  const auto& d = q.description;
  Gemm product{.m = dz.size(0), .n = d.inputs, .k = d.outputs};
  set_a(product, dz, false);
  if (t.packed != nullptr)
    set_packed(product, q, *t.packed, Packed(q).backward);
  else
    set_b(product, t.weight, d.layout == LinearLayout::inputs_outputs);
  set_c(product, t.dx);
  gemm(product, by);
}

void weight_gradient(const LinearQuery& q, const LinearBackward& t, const ConstTensorView& dz, const GemmContext& by) {
  bool outputs_first = q.description.layout == LinearLayout::outputs_inputs;
  TensorView dweight = t.dweight;
  if (dweight.stride(1) != 1 && dweight.stride(0) == 1) {  // the transpose has rows without gaps
    dweight = dweight.transposed(0, 1);
    outputs_first = !outputs_first;
  }
  Gemm product{.m = dweight.size(0), .n = dweight.size(1), .k = dz.size(0)};
  set_a(product, outputs_first ? dz : t.x, true);
  set_b(product, outputs_first ? t.x : dz, false);
  set_c(product, dweight);
  product.accumulate = t.accumulate && !mutant("linear.cpu_dweight_forgets");
  gemm(product, by);
}

void backward(const LinearQuery& q, const LinearBackward& t, void* workspace, const GemmContext& by) {
  const Scratch scratch(q, t.dy.size(0), by.library, workspace);
  if (!by.prepares) elementwise_gradient(q, t, scratch);
  const bool own = scratch.dz.given() && !mutant("linear.cpu_slope_left_out");
  const ConstTensorView dz = own ? ConstTensorView(scratch.dz) : t.dy;
  if (t.dx.given()) input_gradient(q, t, dz, by);
  if (t.dweight.given()) weight_gradient(q, t, dz, by);
}

/// The runs that dense tensors of these sizes may come to, with every element at one address, which nobody reads or writes.
void prepare(const LinearQuery& q, const LinearSizes& sizes) {
  const auto& d = q.description;
  alignas(64) std::byte nowhere[64];
  const auto dense = [&](DType dtype, std::int64_t rows, std::int64_t columns) {
    return TensorView(nowhere, dtype, {rows, columns});
  };
  const auto matrix = [&](DType dtype) {
    return d.layout == LinearLayout::outputs_inputs ? dense(dtype, d.outputs, d.inputs) : dense(dtype, d.inputs, d.outputs);
  };
  const TensorView x = dense(d.dtype, sizes.batch, d.inputs), y = dense(d.dtype, sizes.batch, d.outputs);
  const GemmContext by = context_of(q, true, true);
  LinearForward run{.x = x, .weight = matrix(d.dtype), .y = y};
  if (d.training && d.activation != Activation::none) run.preactivation = y;
  forward(q, run, by);
  run.bias = TensorView(nowhere, d.dtype, {d.outputs});
  forward(q, run, by);
  if (!d.training) return;
  backward(q, {.dy = y, .weight = matrix(d.dtype), .preactivation = y, .dx = x}, nullptr, by);
  for (const DType dtype : {d.dtype, DType::f32})
    for (const bool accumulate : {false, true})
      backward(q, {.dy = y, .x = x, .preactivation = y, .dweight = matrix(dtype), .accumulate = accumulate}, nullptr, by);
}

Verdict accepts_dtype(const LinearQuery& q) { return accept_storage(q.description.dtype); }

Verdict accepts_own(const LinearQuery& q) {
  Verdict verdict = accepts_dtype(q);
  if (verdict.accepted) verdict.reason = how_multiplied(q.isa, q.description.dtype);
  return verdict;
}

Verdict accepts_onednn(const LinearQuery& q) {
  if (!has_onednn()) return decline("oneDNN is not built");
  if (q.options.deterministic) return decline("deterministic: the order of oneDNN's sums is not fixed");
  if (q.isa != best_isa()) return decline(name(q.isa), " is asked for, oneDNN would choose for itself");
  const DType dtype = q.description.dtype;
  if (dtype != DType::f64 && !onednn_multiplies(dtype))
    return decline("oneDNN has no ", name(dtype), " products for this CPU but those of its reference");
  return accepts_dtype(q);
}

template <bool library>
constexpr LinearRow row_of(std::string_view name, Verdict (*accepts)(const LinearQuery&)) {
  return {
      .name = name,
      .accepts = accepts,
      .footprint = [](const LinearQuery& q) { return footprint(q, library); },
      .forward = [](const LinearQuery& q, const LinearForward& t, void*, const Stream&) { forward(q, t, context_of(q, library)); },
      .backward = [](const LinearQuery& q, const LinearBackward& t, void* workspace,
                     const Stream&) { backward(q, t, workspace, context_of(q, library)); },
      .pack = pack,
      .prepare = library ? prepare : nullptr};
}

}  // namespace

const LinearRow linear_onednn = row_of<true>("onednn.linear", accepts_onednn);
const LinearRow linear = row_of<false>("cpu.linear", accepts_own);

}  // namespace everglow::cpu
