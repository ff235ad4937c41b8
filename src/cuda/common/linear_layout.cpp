// Rooms of the linear rows.
#include "cuda/common/linear_layout.hpp"

#include "gemm/cublaslt.hpp"
#include "plan/gemm.hpp"

#include <algorithm>
#include <initializer_list>

namespace everglow::cuda {
namespace {

constexpr std::int64_t needed = 16, line = 64;  // bytes

std::int64_t rounded(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

/// What the dense tensors of a layer are.
struct Sizes {
  std::int64_t batch, inputs, outputs, weight_rows, weight_columns, element;
  explicit Sizes(const LinearQuery& q)
      : batch(q.sizes.batch),
        inputs(q.description.inputs),
        outputs(q.description.outputs),
        weight_rows(q.description.layout == LinearLayout::outputs_inputs ? outputs : inputs),
        weight_columns(q.description.layout == LinearLayout::outputs_inputs ? inputs : outputs),
        element(static_cast<std::int64_t>(size_of(q.description.dtype))) {}
  bool odd(std::int64_t columns) const { return columns * element % needed != 0; }
};

struct Operand {
  std::int64_t rows, columns;
  bool made = false;  // on 64 bytes anyway
};

/// Whether a product gains more from rows on 16 bytes than the copies of its operands take.
bool pays(const LinearQuery& query, plan::Product product, std::initializer_list<Operand> operands) {
  const Sizes s(query);
  const plan::Machine machine =
      plan::machine_of(query.device.figures, {.dtype = query.description.dtype, .math = query.options.math});
  double copies = 0;
  product.alignment = 128;
  const double whole = plan::predict(machine, product).time_us;
  for (const Operand& o : operands) {
    if (o.made || !s.odd(o.columns)) continue;
    product.alignment = std::min(product.alignment, plan::alignment_of(o.columns * s.element));
    const double bytes = static_cast<double>(o.rows) * static_cast<double>(o.columns) * static_cast<double>(s.element);
    copies += machine.overhead_us + 2 * bytes / machine.copy;
  }
  return copies > 0 && plan::predict(machine, product).time_us > whole + copies;
}

bool forward_pays(const LinearQuery& q) {
  const Sizes s(q);
  return pays(q, {s.outputs, s.batch, s.inputs}, {{s.batch, s.inputs}, {s.weight_rows, s.weight_columns}, {s.batch, s.outputs}});
}
bool made(const LinearQuery& q) { return q.description.activation != Activation::none; }
bool activation_gradient_pays(const LinearQuery& q) {
  const Sizes s(q);
  return pays(q, {s.inputs, s.batch, s.outputs},
              {{s.batch, s.outputs, made(q)}, {s.weight_rows, s.weight_columns}, {s.batch, s.inputs}});
}
bool weight_gradient_pays(const LinearQuery& q) {
  const Sizes s(q);
  return pays(q, {s.inputs, s.outputs, s.batch},
              {{s.batch, s.outputs, made(q)}, {s.batch, s.inputs}, {s.weight_rows, s.weight_columns}});
}

void* take(Arena& arena, bool wanted, std::int64_t rows, std::int64_t columns, std::int64_t element) {
  return wanted && rows > 0 && columns > 0 ? arena.take<std::byte>(rows * rounded(columns * element, line)) : nullptr;
}

}  // namespace

void* take_library_scratch(Arena& arena) {
  constexpr std::size_t wanted = 256;
  std::byte* const memory = arena.take<std::byte>(static_cast<std::int64_t>(cublaslt::workspace_bytes + wanted));
  const auto past = reinterpret_cast<std::uintptr_t>(memory) % wanted;
  return memory == nullptr || past == 0 ? memory : memory + (wanted - past);
}

ForwardRooms forward_rooms(const LinearQuery& query, Arena& arena) {
  const Sizes s(query);
  const bool pay = forward_pays(query), deep = pay && s.odd(s.inputs);
  ForwardRooms out;
  out.library = take_library_scratch(arena);
  out.bias = arena.take<std::byte>(s.outputs * s.element);
  out.x = take(arena, deep, s.batch, s.inputs, s.element);
  const std::int64_t filled = unit_of(query.description.dtype) - 1;  // rows of zeros where k counts rows
  out.weight = take(arena, deep || (pay && s.odd(s.weight_columns)), s.weight_rows + filled, s.weight_columns, s.element);
  out.y = take(arena, pay && s.odd(s.outputs), s.batch, s.outputs, s.element);
  return out;
}

BackwardRooms backward_rooms(const LinearQuery& query, Arena& arena) {
  const Sizes s(query);
  const bool for_dx = activation_gradient_pays(query), for_dweight = weight_gradient_pays(query);
  BackwardRooms out;
  out.library = take_library_scratch(arena);
  out.sums = arena.take<float>(sum_rows_scratch(s.batch, s.outputs));
  out.x = take(arena, for_dweight && s.odd(s.inputs), s.batch, s.inputs, s.element);
  out.weight = take(arena, for_dx && s.odd(s.weight_columns), s.weight_rows, s.weight_columns, s.element);
  out.dz = take(arena, made(query) || ((for_dx || for_dweight) && s.odd(s.outputs)), s.batch, s.outputs, s.element);
  out.dx = take(arena, for_dx && s.odd(s.inputs), s.batch, s.inputs, s.element);
  out.wide_dx = take(arena, for_dx && s.odd(s.outputs), s.batch, s.inputs, sizeof(float));
  // A gradient may be f32 beside 16-bit tensors.
  out.dweight = take(arena, for_dweight && s.odd(s.weight_columns), s.weight_rows, s.weight_columns, sizeof(float));
  return out;
}

PlainRooms plain_rooms(const LinearQuery& query, Arena& arena) {
  const Sizes s(query);
  PlainRooms out;
  if (!query.description.training) return out;
  out.dz = take(arena, made(query), s.batch, s.outputs, s.element);
  out.sums = arena.take<float>(sum_rows_scratch(s.batch, s.outputs));
  return out;
}

std::int64_t unit_of(DType dtype) { return needed / static_cast<std::int64_t>(size_of(dtype)); }

bool needs_staging(const Matrix& m) {
  const auto size = static_cast<std::int64_t>(size_of(m.dtype));
  const std::int64_t apart = m.step == 1 || m.columns == 1 ? m.stride : m.step;  // from column to column where it is transposed
  return reinterpret_cast<std::uintptr_t>(m.data) % needed != 0 || apart * size % needed != 0;
}

Matrix staged_matrix(const Matrix& m, void* room) {
  const auto size = static_cast<std::int64_t>(size_of(m.dtype));
  return {room, m.rows, m.columns, rounded(m.columns * size, line) / size, 1, m.dtype};
}

DenseProduct dense_product(const LinearQuery& query, int pass) {
  const Sizes s(query);
  const bool pay = pass == 0 ? forward_pays(query) : pass == 1 ? activation_gradient_pays(query) : weight_gradient_pays(query);
  const auto dense = [&](std::int64_t rows, std::int64_t columns) {
    const Matrix m{nullptr, rows, columns, columns, 1, query.description.dtype};
    return pay ? staged_matrix(m, nullptr) : m;
  };
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  const Matrix x = dense(s.batch, s.inputs), y = dense(s.batch, s.outputs), w = dense(s.weight_rows, s.weight_columns);
  if (pass == 0) return {x, outputs_first ? w.transposed() : w, y};
  if (pass == 1) return {y, outputs_first ? w : w.transposed(), x};
  return {outputs_first ? y.transposed() : x.transposed(), outputs_first ? x : y, w};
}

}  // namespace everglow::cuda
