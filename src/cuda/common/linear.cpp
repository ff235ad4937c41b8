// The linear rows of a card: products of cuBLASLt with what it can do at their end fused into them, and a plain row for everything.
#include "core/arena.hpp"
#include "core/rounding.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/linear_layout.hpp"
#include "cuda/common/odd_product.hpp"
#include "cuda/common/rows.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

using cublaslt::Epilogue;

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

/// y = act(x w + bias), and z before the activation where it is wanted.
struct ForwardRun {
  LayerProduct product;  // into y
  plan::OddScheme scheme;
  Prepared prepared;
  Matrix bias;       // as it is given
  void* whole_bias;  // side by side, as many as the library's product has columns; null: none
  Matrix z;
  const Matrix& y() const { return product.c; }
  std::int64_t columns() const { return std::min(scheme.n, y().columns); }
  /// The part that the library's product makes.
  Matrix main(const Matrix& m) const { return m.part_of_rows(0, y().rows).part_of_columns(0, columns()); }
};

/// Starts `moves`, and beside them the columns that the scheme left over, to the end.
void start_with_forward_rest(const Context& context, const ForwardRun& run, Moves& moves) {
  const std::int64_t from = run.scheme.n, left = run.y().columns - from;
  if (left <= 0) return moves.start(context.stream);
  multiply_narrow({.a = run.product.a,
                   .b = run.product.b.part_of_columns(from, left),
                   .bias = run.bias.part_of_columns(from, left),
                   .c = run.y().part_of_columns(from, left),
                   .z = run.z.data != nullptr ? run.z.part_of_columns(from, left) : Matrix{},
                   .activation = context.query.description.activation},
                  moves.taken(), context.stream);
}

/// All in one call but for what is left; false, with nothing started, where that cannot be.
bool forward_fused(const Context& context, const ForwardRun& run) {
  const LinearDescription& d = context.query.description;
  const bool stores_z = run.z.data != nullptr && d.activation != Activation::none;
  const std::optional<Epilogue> epilogue = fused(d, run.bias.data != nullptr, stores_z);
  const Prepared& p = run.prepared;
  if (!epilogue || (stores_z && (!fits_aux(run.z) || run.scheme.stage_c || needs_staging(run.y())))) return false;
  if (*epilogue != Epilogue::none && d.dtype != DType::f32 && !on_units(p.a, p.b, p.c)) return false;
  const Ending ending{.epilogue = *epilogue, .bias = run.whole_bias, .aux = stores_z ? run.z : Matrix{}};
  if (!multiply_library(context, p.a, p.b, p.c, ending)) return false;
  Moves moves;
  finish(run.product, run.scheme, p, moves, context.stream);
  if (run.z.data != nullptr && !stores_z) copy_matrix(run.y(), run.z, false, context.stream);
  return true;
}

/// to = x w + bias, rounded once: with the bias at the end, or with the product added to it.
void forward_product(const Context& context, const ForwardRun& run, const Prepared& p) {
  const bool biased = run.bias.data != nullptr, ends = biased && (p.c.dtype == DType::f32 || on_units(p.a, p.b, p.c));
  const Ending ending{.epilogue = ends ? Epilogue::bias : Epilogue::none, .bias = ends ? run.whole_bias : nullptr};
  if ((!biased || ends) && multiply_library(context, p.a, p.b, p.c, ending)) return;
  Matrix repeated{run.whole_bias, p.c.rows, p.c.columns, 0, 1, run.bias.dtype};
  if (biased) copy_matrix(repeated, p.c, false, context.stream);
  multiply(context, p, biased);
}

/// The product with its bias first, then the activation from what was stored.
void forward_in_steps(const Context& context, const ForwardRun& run) {
  const Activation activation = context.query.description.activation;
  const Matrix first = run.main(run.z.data != nullptr ? run.z : run.y());
  Prepared p = run.prepared;
  if (!run.scheme.stage_c) p.c = first;
  forward_product(context, run, p);
  const Matrix from = run.main(p.c), y = run.main(run.y());
  if (from.data != first.data && run.z.data != nullptr) copy_matrix(from, first, false, context.stream);
  if (activation != Activation::none || from.data != y.data) activate_matrix(from, y, activation, context.stream);
}

/// The bias as one block with zeros past its end, which the library reads; null where there is none.
void* prepare_bias(const Context& context, const Matrix& bias, std::int64_t columns, void* room, Moves& moves) {
  if (bias.data == nullptr) return nullptr;
  if (bias.step == 1 && bias.columns >= columns && !needs_staging({bias.data, 1, columns, 0, 1, bias.dtype})) return bias.data;
  const Matrix whole{room, 1, std::max(columns, bias.columns), 0, 1, bias.dtype};
  if (can_move(bias, whole))
    moves.add(bias, whole);
  else
    copy_matrix(bias, whole.part_of_columns(0, bias.columns), false, context.stream);
  return room;
}

/// Rooms are sized for rows along their elements: an operand that lies otherwise has none.
void* room_for(const Matrix& m, void* room) {
  const std::optional<Orientation> lies = stored(m);
  return lies && !lies->transposed ? room : nullptr;
}

void forward(const LinearQuery& query, const LinearForward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const ForwardRooms rooms = forward_rooms(query, arena);
  const Context context{query, stream_of(stream), rooms.library};
  const Matrix x = matrix_of(t.x), weight = matrix_of(t.weight), y = matrix_of(t.y);
  if (y.rows == 0 || y.columns == 0) return;
  ForwardRun run{.product = {.a = x,
                             .b = query.description.layout == LinearLayout::outputs_inputs ? weight.transposed() : weight,
                             .c = y,
                             .room_a = room_for(x, rooms.x),
                             .room_b = room_for(weight, rooms.weight),
                             .room_c = rooms.y,
                             .leaves_rows = false},
                 .scheme = {},
                 .prepared = {},
                 .bias = matrix_of(t.bias),
                 .whole_bias = nullptr,
                 .z = matrix_of(t.preactivation)};
  run.scheme = scheme_of(query, run.product);
  Moves moves;
  run.prepared = prepare(run.product, run.scheme, moves);
  run.whole_bias = prepare_bias(context, run.bias, run.prepared.c.columns, rooms.bias, moves);
  start_with_forward_rest(context, run, moves);
  if (!forward_fused(context, run)) forward_in_steps(context, run);
}

/// A product of backward and how it is made.
struct BackwardProduct {
  LayerProduct product;
  plan::OddScheme scheme{};
  bool wanted = false;
};

bool leaves_rest(const LayerProduct& p, const plan::OddScheme& s) { return s.m < p.c.rows || s.n < p.c.columns; }

BackwardProduct dx_product(const LinearQuery& query, const LinearBackward& t, const Matrix& dz, const BackwardRooms& rooms) {
  const Matrix weight = matrix_of(t.weight), dx = matrix_of(t.dx);
  if (!t.dx.given() || dx.rows == 0 || dx.columns == 0) return {};
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  return {.product = {.a = dz,
                      .b = outputs_first ? weight : weight.transposed(),
                      .c = dx,
                      .room_a = rooms.dz,
                      .room_b = room_for(weight, rooms.weight),
                      .room_c = rooms.dx,
                      .wide = rooms.wide_dx},
          .wanted = true};
}

BackwardProduct dweight_product(const LinearQuery& query, const LinearBackward& t, const Matrix& dz, const BackwardRooms& rooms) {
  const Matrix x = matrix_of(t.x), dweight = matrix_of(t.dweight);
  if (!t.dweight.given() || dweight.rows == 0 || dweight.columns == 0) return {};
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  return {.product = {.a = outputs_first ? dz.transposed() : x.transposed(),
                      .b = outputs_first ? x : dz,
                      .c = dweight,
                      .room_a = outputs_first ? rooms.dz : room_for(x, rooms.x),
                      .room_b = outputs_first ? room_for(x, rooms.x) : rooms.dz,
                      .room_c = rooms.dweight,
                      .accumulate = t.accumulate},
          .wanted = true};
}

/// The gradient of what the activation read, or dy, in the room, with zeros to a whole number of columns; a copy is added to
/// `moves`.
Matrix made_gradient(const Context& context, const LinearBackward& t, void* room, Moves& moves) {
  const Matrix dy = matrix_of(t.dy), made = staged_matrix(dy, room);
  const Activation activation = context.query.description.activation;
  const std::int64_t whole = rounded_up(dy.columns, unit_of(dy.dtype));
  Matrix filled = made;
  filled.columns = whole;
  if (activation == Activation::none && can_move(dy, filled)) {
    moves.add(dy, filled);
    return made;
  }
  activation_gradient(matrix_of(t.preactivation), dy, made, activation, context.stream);
  clear_matrix(filled.part_of_columns(dy.columns, whole - dy.columns), context.stream);
  return made;
}

/// Whether dbias is made on the way of dweight: side by side, of one type, and nothing to be added to.
bool sums_on_the_way(const LinearBackward& t) {
  const Matrix dbias = matrix_of(t.dbias);
  return t.dbias.given() && !t.accumulate && dbias.step == 1 && dbias.dtype == t.dweight.dtype && !needs_staging(dbias);
}

/// dweight, and dbias with it or from dz.
void weight_gradient(const Context& context, const LinearBackward& t, const BackwardProduct& p, const Matrix& dz,
                     const BackwardRooms& rooms, Moves& moves) {
  const bool outputs_first = context.query.description.layout == LinearLayout::outputs_inputs;
  const Matrix dbias = matrix_of(t.dbias);
  bool summed = false;
  if (p.wanted) {
    const Prepared prepared = prepare(p.product, p.scheme, moves);
    const Matrix sums = sums_on_the_way(t) ? dbias : Matrix{};
    start_with_rest(p.product, p.scheme, outputs_first ? sums : Matrix{}, outputs_first ? Matrix{} : sums, moves, context.stream);
    const std::int64_t columns = outputs_first ? p.scheme.m : p.scheme.n;
    const bool past = columns > dz.columns;  // more sums than there are in dbias
    Ending ending{.epilogue = outputs_first ? Epilogue::sum_of_b : Epilogue::sum_of_a,
                  .bias = past ? rooms.dbias : dbias.data,
                  .accumulate = t.accumulate && !p.scheme.stage_c};
    summed = sums_on_the_way(t) && ending.bias != nullptr && multiply_library(context, prepared.a, prepared.b, prepared.c, ending);
    if (!summed) multiply(context, prepared, ending.accumulate);
    if (summed && past) moves.add({ending.bias, 1, dz.columns, 0, 1, dbias.dtype}, dbias);
    finish(p.product, p.scheme, prepared, moves, context.stream);
  }
  if (t.dbias.given() && !summed && dz.columns > 0) sum_rows(dz, dbias, t.accumulate, rooms.sums, context.stream);
}

void backward(const LinearQuery& query, const LinearBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const BackwardRooms rooms = backward_rooms(query, arena);
  const Context context{query, stream_of(stream), rooms.library};
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  Matrix dz = matrix_of(t.dy);
  BackwardProduct for_dx = dx_product(query, t, dz, rooms), for_dweight = dweight_product(query, t, dz, rooms);
  bool makes = query.description.activation != Activation::none;
  for (BackwardProduct* p : {&for_dx, &for_dweight}) {
    if (makes || !p->wanted) continue;
    p->scheme = scheme_of(query, p->product);
    makes |= p == &for_dx || outputs_first ? p->scheme.stage_a : p->scheme.stage_b;
  }
  Moves moves;
  if (makes) {  // both products take the copy then
    dz = made_gradient(context, t, rooms.dz, moves);
    for_dx = dx_product(query, t, dz, rooms), for_dweight = dweight_product(query, t, dz, rooms);
    for_dx.product.a_filled = true;
    (outputs_first ? for_dweight.product.a_filled : for_dweight.product.b_filled) = true;
    for (BackwardProduct* p : {&for_dx, &for_dweight}) {
      if (p->wanted) p->scheme = scheme_of(query, p->product);
      if (leaves_rest(p->product, p->scheme)) moves.start(context.stream);  // a rest reads the copy
    }
  }
  if (for_dx.wanted) {
    const Prepared prepared = prepare(for_dx.product, for_dx.scheme, moves);
    start_with_rest(for_dx.product, for_dx.scheme, {}, {}, moves, context.stream);
    multiply(context, prepared, false);
    finish(for_dx.product, for_dx.scheme, prepared, moves, context.stream);
  }
  weight_gradient(context, t, for_dweight, dz, rooms, moves);
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

/// The algorithms for dense tensors, or such on preferred strides, with a bias and its gradient.
void explain(const LinearQuery& query, Explanation& out) {
  if (!query.device.present) return;
  const CurrentCard current(query.device.device.index);
  const LinearDescription& d = query.description;
  const Epilogue endings[] = {fused(d, true, d.training).value_or(Epilogue::bias), Epilogue::none,
                              d.layout == LinearLayout::outputs_inputs ? Epilogue::sum_of_b : Epilogue::sum_of_a};
  for (std::size_t i = 0; i < out.gemms.size(); ++i)
    if (const std::optional<cublaslt::Form> form = form_of_pass(query, static_cast<int>(i), endings[i]))
      out.gemms[i].algorithm = cublaslt::algorithm_text(query.device.device.index, *form);
}

int tune(const std::function<void()>& run) {
  cublaslt::Tuning tuning;
  run();
  return tuning.keep();
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
                                .explain = explain,
                                .tune = tune};

const LinearRow linear{.name = "cuda.linear",
                       .accepts = accept_storage_on_card<LinearQuery>,
                       .footprint = arena_footprint<plain_rooms, LinearQuery>,
                       .forward = plain_forward,
                       .backward = plain_backward};

}  // namespace everglow::cuda
