// The linear rows of a card: products of cuBLASLt with what it can do at their end fused into them, and a plain row for everything.
#include "core/arena.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/library_product.hpp"
#include "cuda/common/linear_layout.hpp"
#include "cuda/common/rows.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

using cublaslt::Epilogue;

/// The matrix itself, or where its rows are not multiples of 16 bytes and there is room, a copy whose rows are.
Matrix staged(const Context& context, const Matrix& m, void* room) {
  if (room == nullptr || !needs_staging(m) || m.rows == 0 || m.columns == 0) return m;
  const Matrix copy = staged_matrix(m, room);
  copy_matrix(m, copy, false, context.stream);
  return copy;
}

/// Where a product writes: the matrix itself, or rows that are multiples of 16 bytes in the room, to be copied from there.
Matrix target(const Matrix& m, void* room) { return room != nullptr && needs_staging(m) ? staged_matrix(m, room) : m; }

/// Activations that cuBLASLt has. Its GELU is the tanh form and not as exact as f32 is; with z stored beside y it can do that
/// alone.
std::optional<Epilogue> fused(const LinearDescription& d, bool bias, bool stores_z) {
  if (d.activation == Activation::none) return bias ? Epilogue::bias : Epilogue::none;
  if (d.activation == Activation::relu && !stores_z) return bias ? Epilogue::relu_bias : Epilogue::relu;
  if (d.activation != Activation::gelu_tanh || d.dtype == DType::f32) return {};
  if (stores_z) return bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux;
  return bias ? Epilogue::gelu_bias : Epilogue::gelu;
}

/// cuBLASLt writes z beside y only with rows of 16 bytes, as far apart as it likes.
bool fits_aux(const Matrix& z) { return z.step == 1 && !needs_staging(z) && z.stride >= z.columns; }

/// y = act(x w + bias), and z before the activation where it is wanted. `room` is that of a staged result.
struct ForwardProduct {
  Matrix x, w, bias, y, z;
  void* bias_room = nullptr;
  void* room = nullptr;
};

/// The bias as one block, which the library reads; without data where there is none.
Matrix dense_bias(const Context& context, const ForwardProduct& p) {
  if (p.bias.data == nullptr || (p.bias.step == 1 && reinterpret_cast<std::uintptr_t>(p.bias.data) % 16 == 0)) return p.bias;
  Matrix dense = p.bias;
  dense.data = p.bias_room, dense.step = 1;
  copy_matrix(p.bias, dense, false, context.stream);
  return dense;
}

/// The columns of a product that the library makes with its ending, all or all whole units of them; narrow_columns at most are
/// left.
std::int64_t main_columns(const Context& context, const ForwardProduct& p) {
  const std::int64_t columns = p.y.columns, whole = whole_units(columns, p.y.dtype);
  return whole > 0 && worth_parts(context.query, p.y, p.x.columns) ? whole : columns;
}

/// All in one call, and one for the columns that are left; false, with nothing started, where that cannot be.
bool forward_fused(const Context& context, const ForwardProduct& p) {
  const LinearDescription& d = context.query.description;
  const bool stores_z = p.z.data != nullptr && d.activation != Activation::none;
  const std::optional<Epilogue> epilogue = fused(d, p.bias.data != nullptr, stores_z);
  if (!epilogue || (stores_z && (!fits_aux(p.z) || needs_staging(p.y)))) return false;
  const std::int64_t columns = p.y.columns, whole = main_columns(context, p);
  const Matrix to = target(p.y, p.room), main = to.part_of_columns(0, whole), w = p.w.part_of_columns(0, whole);
  const bool ends = *epilogue != Epilogue::none;
  if (ends && d.dtype != DType::f32 && !on_units(p.x, w, main)) return false;
  if (!multiply_library(context, p.x, w, main, {.epilogue = *epilogue, .bias = p.bias.data, .aux = stores_z ? p.z : Matrix{}}))
    return false;
  if (whole < columns)
    multiply_narrow({.a = p.x,
                     .b = p.w.part_of_columns(whole, columns - whole),
                     .bias = p.bias.part_of_columns(whole, columns - whole),
                     .c = to.part_of_columns(whole, columns - whole),
                     .z = stores_z ? p.z.part_of_columns(whole, columns - whole) : Matrix{},
                     .activation = d.activation},
                    context.stream);
  if (to.data != p.y.data) copy_matrix(to, p.y, false, context.stream);
  return true;
}

/// to = x w + bias, rounded once: with the bias at the end, or with the product added to it.
void forward_product(const Context& context, const ForwardProduct& p, const Matrix& to) {
  const std::int64_t columns = to.columns, whole = main_columns(context, p);
  const Matrix main = to.part_of_columns(0, whole), w = p.w.part_of_columns(0, whole);
  const bool ends = p.bias.data != nullptr && (to.dtype == DType::f32 || on_units(p.x, w, main));
  const Ending ending{.epilogue = ends ? Epilogue::bias : Epilogue::none, .bias = ends ? p.bias.data : nullptr};
  if ((p.bias.data == nullptr || ends) && multiply_library(context, p.x, w, main, ending)) {
    if (whole == columns) return;
    const std::int64_t left = columns - whole;
    multiply_narrow({.a = p.x,
                     .b = p.w.part_of_columns(whole, left),
                     .bias = p.bias.part_of_columns(whole, left),
                     .c = to.part_of_columns(whole, left),
                     .z = {},
                     .activation = Activation::none},
                    context.stream);
    return;
  }
  Matrix repeated = p.bias;
  repeated.rows = to.rows, repeated.stride = 0;
  if (p.bias.data != nullptr) copy_matrix(repeated, to, false, context.stream);
  multiply(context, p.x, p.w, to, p.bias.data != nullptr);
}

/// The product with its bias first, then the activation from what was stored.
void forward_in_steps(const Context& context, const ForwardProduct& p) {
  const Activation activation = context.query.description.activation;
  const Matrix& first = p.z.data != nullptr ? p.z : p.y;
  const Matrix to = target(first, p.room);
  forward_product(context, p, to);
  if (to.data != first.data && p.z.data != nullptr) copy_matrix(to, p.z, false, context.stream);
  if (activation != Activation::none || to.data != p.y.data) activate_matrix(to, p.y, activation, context.stream);
}

/// A copy with more rows and columns, which are zeros.
Matrix filled_copy(const Context& context, const Matrix& from, void* room, std::int64_t rows, std::int64_t columns) {
  Matrix shape = from;
  shape.rows = rows, shape.columns = columns;
  const Matrix to = staged_matrix(shape, room);
  copy_matrix(from, to.part_of_rows(0, from.rows).part_of_columns(0, from.columns), false, context.stream);
  clear_matrix(to.part_of_rows(from.rows, rows - from.rows), context.stream);
  clear_matrix(to.part_of_columns(from.columns, columns - from.columns), context.stream);
  return to;
}

/// x and w as they are or on rows of 16 bytes. Where k is odd and there is room, both are copied, with zeros up to a whole k.
void stage_operands(const Context& context, const ForwardRooms& rooms, const Matrix& weight, ForwardProduct& p) {
  const bool outputs_first = context.query.description.layout == LinearLayout::outputs_inputs;
  const std::int64_t k = p.x.columns, unit = unit_of(p.x.dtype), filled = (k + unit - 1) / unit * unit;
  if (k == filled || rooms.x == nullptr || rooms.weight == nullptr || p.x.rows == 0) {
    const Matrix w = staged(context, weight, rooms.weight);
    p.x = staged(context, p.x, rooms.x), p.w = outputs_first ? w.transposed() : w;
    return;
  }
  p.x = filled_copy(context, p.x, rooms.x, p.x.rows, filled);
  const Matrix w = outputs_first ? filled_copy(context, weight, rooms.weight, weight.rows, filled)
                                 : filled_copy(context, weight, rooms.weight, filled, weight.columns);
  p.w = outputs_first ? w.transposed() : w;
}

void forward(const LinearQuery& query, const LinearForward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const ForwardRooms rooms = forward_rooms(query, arena);
  const Context context{query, stream_of(stream), rooms.library};
  const Matrix y = matrix_of(t.y);
  if (y.rows == 0 || y.columns == 0) return;
  ForwardProduct p{.x = matrix_of(t.x),
                   .w = {},
                   .bias = matrix_of(t.bias),
                   .y = y,
                   .z = matrix_of(t.preactivation),
                   .bias_room = rooms.bias,
                   .room = rooms.y};
  p.bias = dense_bias(context, p);
  stage_operands(context, rooms, matrix_of(t.weight), p);
  if (!forward_fused(context, p))
    forward_in_steps(context, p);
  else if (p.z.data != nullptr && query.description.activation == Activation::none)
    copy_matrix(y, p.z, false, context.stream);
}

/// dweight = or += its product, of which the library sums dz over the batch on its way for the whole units of outputs: how many.
std::int64_t weight_product(const Context& context, const Matrix& x, const Matrix& dz, const Matrix& to, const Ending& wanted) {
  const bool outputs_first = context.query.description.layout == LinearLayout::outputs_inputs;
  const Matrix a = outputs_first ? dz.transposed() : x.transposed(), b = outputs_first ? x : dz;
  const std::int64_t outputs = dz.columns, inputs = x.columns;
  const std::int64_t whole_out = whole_units(outputs, dz.dtype), whole_in = whole_units(inputs, dz.dtype);
  const bool parts = worth_parts(context.query, to, dz.rows) && whole_out > 0 && whole_in > 0;
  const std::int64_t some_out = parts ? whole_out : outputs, some_in = parts ? whole_in : inputs;
  const std::int64_t rows = outputs_first ? some_out : some_in, columns = outputs_first ? some_in : some_out;
  Ending ending = wanted;
  ending.epilogue = outputs_first ? Epilogue::sum_of_b : Epilogue::sum_of_a;
  const Matrix main = to.part_of_rows(0, rows).part_of_columns(0, columns);
  if (wanted.bias == nullptr || !multiply_library(context, a.part_of_rows(0, rows), b.part_of_columns(0, columns), main, ending)) {
    multiply(context, a, b, to, wanted.accumulate);
    return 0;
  }
  // What is left of both sides, with nothing at its end.
  const Matrix below = to.part_of_rows(rows, to.rows - rows),
               right = to.part_of_rows(0, rows).part_of_columns(columns, to.columns - columns);
  multiply(context, a.part_of_rows(rows, to.rows - rows), b, below, wanted.accumulate);
  multiply(context, a.part_of_rows(0, rows), b.part_of_columns(columns, to.columns - columns), right, wanted.accumulate);
  return some_out;
}

/// dweight and dbias from dz and x.
void weight_gradient(const Context& context, const LinearBackward& t, const Matrix& x, const Matrix& dz,
                     const BackwardRooms& rooms) {
  const Matrix dweight = matrix_of(t.dweight), dbias = matrix_of(t.dbias);
  const bool sums = t.dbias.given() && !t.accumulate && dbias.step == 1 && dbias.dtype == dweight.dtype &&
                    reinterpret_cast<std::uintptr_t>(dbias.data) % 16 == 0;
  std::int64_t summed = 0;
  if (t.dweight.given() && dweight.rows > 0 && dweight.columns > 0) {
    const Matrix to = target(dweight, rooms.dweight);
    const bool copied = to.data != dweight.data;
    summed =
        weight_product(context, x, dz, to, {.bias = sums ? dbias.data : nullptr, .aux = {}, .accumulate = t.accumulate && !copied});
    if (copied) copy_matrix(to, dweight, t.accumulate, context.stream);
  }
  const std::int64_t left = dz.columns - summed;
  if (t.dbias.given() && left > 0)
    sum_rows(dz.part_of_columns(summed, left), dbias.part_of_columns(summed, left), t.accumulate, rooms.sums, context.stream);
}

/// dx = dz weight. Where rows of the weight are odd and there is room for a copy, it has zeros up to whole units, and so has the
/// result, which is made in a room too: then no narrow columns are left.
void activation_gradient_product(const Context& context, const LinearBackward& t, const Matrix& dz, const BackwardRooms& rooms) {
  const bool outputs_first = context.query.description.layout == LinearLayout::outputs_inputs;
  const Matrix given = matrix_of(t.weight), dx = matrix_of(t.dx);
  if (dx.rows == 0 || dx.columns == 0) return;
  const std::int64_t unit = unit_of(dx.dtype), whole = (dx.columns + unit - 1) / unit * unit;
  const bool fills = outputs_first && whole != dx.columns && rooms.weight != nullptr && rooms.dx != nullptr && given.rows > 0;
  const Matrix weight = fills ? filled_copy(context, given, rooms.weight, given.rows, whole) : staged(context, given, rooms.weight);
  const Matrix b = outputs_first ? weight : weight.transposed();
  if (rooms.wide_dx != nullptr && dz.columns != whole_units(dz.columns, dz.dtype))
    return multiply_odd_k(context, dz, b, dx, rooms.wide_dx);
  Matrix to = fills ? staged_matrix(dx, rooms.dx) : target(dx, rooms.dx);
  to.columns = b.columns;
  multiply(context, dz, b, to, false);
  if (to.data != dx.data) copy_matrix(to.part_of_columns(0, dx.columns), dx, false, context.stream);
}

void backward(const LinearQuery& query, const LinearBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const BackwardRooms rooms = backward_rooms(query, arena);
  const Context context{query, stream_of(stream), rooms.library};
  Matrix dz = matrix_of(t.dy);
  if (query.description.activation != Activation::none) {
    const Matrix made = staged_matrix(dz, rooms.dz);
    activation_gradient(matrix_of(t.preactivation), dz, made, query.description.activation, context.stream);
    dz = made;
  } else {
    dz = staged(context, dz, rooms.dz);
  }
  if (t.dx.given()) activation_gradient_product(context, t, dz, rooms);
  if (!t.dweight.given() && !t.dbias.given()) return;
  const Matrix x = t.dweight.given() ? staged(context, matrix_of(t.x), rooms.x) : Matrix{};
  weight_gradient(context, t, x, dz, rooms);
}

Footprint footprint(const LinearQuery& query) {
  Arena first, second;
  forward_rooms(query, first);
  if (query.description.training) backward_rooms(query, second);
  return {.workspace = std::max(first.bytes(), second.bytes())};
}

Verdict accepts(const LinearQuery& query) {
  const Verdict plain = accept_storage_on_card(query);
  if (!plain.accepted) return plain;
  if (query.options.deterministic) return decline("cuBLASLt may add in another order for another batch");
  return accept_library(query.device);
}

/// The algorithms for dense tensors, or for their staged copies.
void explain(const LinearQuery& query, Explanation& out) {
  if (!query.device.present) return;
  const CurrentCard current(query.device.device.index);
  for (std::size_t i = 0; i < out.gemms.size(); ++i) {
    DenseProduct dense = dense_product(query, static_cast<int>(i));
    if (worth_parts(query, dense.c, dense.a.columns)) {  // the part that counts
      const std::int64_t rows = whole_units(dense.c.rows, dense.c.dtype), columns = whole_units(dense.c.columns, dense.c.dtype);
      const std::int64_t k = whole_units(dense.a.columns, dense.a.dtype);
      dense.a = dense.a.part_of_rows(0, rows).part_of_columns(0, k),
      dense.b = dense.b.part_of_rows(0, k).part_of_columns(0, columns);
      dense.c = dense.c.part_of_rows(0, rows).part_of_columns(0, columns);
    }
    const std::optional<cublaslt::Form> form = form_of(query, dense.a, dense.b, dense.c, {});
    if (form) out.gemms[i].algorithm = cublaslt::algorithm_text(query.device.device.index, *form);
  }
}

void plain_forward(const LinearQuery& query, const LinearForward& t, void*, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  const Matrix weight = matrix_of(t.weight), y = matrix_of(t.y), z = matrix_of(t.preactivation);
  const Matrix& first = z.data != nullptr ? z : y;
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  multiply_plain({.a = matrix_of(t.x), .b = outputs_first ? weight.transposed() : weight, .bias = matrix_of(t.bias), .c = first},
                 stream_of(stream));
  if (query.description.activation != Activation::none || first.data != y.data)
    activate_matrix(first, y, query.description.activation, stream_of(stream));
}

void plain_backward(const LinearQuery& query, const LinearBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const PlainRooms rooms = plain_rooms(query, arena);
  const cudaStream_t on = stream_of(stream);
  Matrix dz = matrix_of(t.dy);
  if (query.description.activation != Activation::none) {
    const Matrix made = staged_matrix(dz, rooms.dz);
    activation_gradient(matrix_of(t.preactivation), dz, made, query.description.activation, on);
    dz = made;
  }
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  const Matrix weight = matrix_of(t.weight), x = matrix_of(t.x);
  if (t.dx.given())
    multiply_plain({.a = dz, .b = outputs_first ? weight : weight.transposed(), .bias = {}, .c = matrix_of(t.dx)}, on);
  if (t.dweight.given())
    multiply_plain({.a = outputs_first ? dz.transposed() : x.transposed(),
                    .b = outputs_first ? x : dz,
                    .bias = {},
                    .c = matrix_of(t.dweight),
                    .accumulate = t.accumulate},
                   on);
  if (t.dbias.given()) sum_rows(dz, matrix_of(t.dbias), t.accumulate, rooms.sums, on);
}

}  // namespace

const LinearRow linear_cublaslt{.name = "cublaslt.linear",
                                .accepts = accepts,
                                .footprint = footprint,
                                .forward = forward,
                                .backward = backward,
                                .explain = explain};

const LinearRow linear{.name = "cuda.linear",
                       .accepts = accept_storage_on_card<LinearQuery>,
                       .footprint = arena_footprint<plain_rooms, LinearQuery>,
                       .forward = plain_forward,
                       .backward = plain_backward};

}  // namespace everglow::cuda
