// The linear rows of a card: products of cuBLASLt with what it can do at their end fused into them, and a plain row for everything.
// Every product is written as it stands in row-major views, C = A B; cuBLASLt is given the transposed one, Cᵀ = Bᵀ Aᵀ.
#include "core/arena.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/linear_layout.hpp"
#include "cuda/common/matrix.hpp"
#include "cuda/common/rows.hpp"
#include "gemm/cublaslt.hpp"

#include <algorithm>
#include <optional>

namespace everglow::cuda {
namespace {

using cublaslt::Epilogue;
using cublaslt::Form;

constexpr std::int64_t most_size = (std::int64_t{1} << 31) - 1;  // cuBLASLt counts rows and columns in 32 bits

/// How cuBLASLt finds a matrix, column-major: as stored, or to be transposed; none where it has neither columns nor rows side by
/// side.
struct Orientation {
  bool transposed = false;
  std::int64_t ld = 0;
};
std::optional<Orientation> stored(const Matrix& m) {
  if ((m.step == 1 || m.columns == 1) && (m.rows == 1 || m.stride >= m.columns))
    return Orientation{false, m.rows == 1 ? m.columns : m.stride};
  if ((m.stride == 1 || m.rows == 1) && (m.columns == 1 || m.step >= m.rows))
    return Orientation{true, m.columns == 1 ? m.rows : m.step};
  return {};
}

/// What a product ends with.
struct Ending {
  Epilogue epilogue = Epilogue::none;
  void* bias = nullptr;  // elements side by side
  Matrix aux{};
  bool accumulate = false;
};

/// One run's surroundings.
struct Context {
  const LinearQuery& query;
  cudaStream_t stream;
  void* library_scratch;
  int card() const { return query.device.device.index; }
};

std::optional<Form> form_of(const LinearQuery& query, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
  const std::optional<Orientation> left = stored(b), right = stored(a), result = stored(c);
  const bool fits = left && right && result && !result->transposed && std::max({c.rows, c.columns, a.columns}) <= most_size;
  if (!fits || a.columns == 0) return {};
  return Form{.m = c.columns,
              .n = c.rows,
              .k = a.columns,
              .transpose_a = left->transposed,
              .transpose_b = right->transposed,
              .lda = left->ld,
              .ldb = right->ld,
              .ldd = result->ld,
              .ld_aux = ending.aux.data != nullptr ? ending.aux.stride : 0,
              .in = a.dtype,
              .out = c.dtype,
              .math = query.options.math,
              .epilogue = ending.epilogue,
              .accumulate = ending.accumulate};
}

/// False, with nothing started, where cuBLASLt does not take the product.
bool multiply_library(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, const Ending& ending) {
  const std::optional<Form> form = form_of(context.query, a, b, c, ending);
  return form && cublaslt::multiply(context.card(), *form, {b.data, a.data, c.data, ending.bias, ending.aux.data},
                                    context.library_scratch, context.stream);
}

/// c = or += a b, by whoever takes it.
void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (c.rows == 0 || c.columns == 0) return;
  if (!multiply_library(context, a, b, c, {.accumulate = accumulate}))
    multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = accumulate}, context.stream);
}

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

/// All in one call; false, with nothing started, where that cannot be.
bool forward_fused(const Context& context, const ForwardProduct& p, const Matrix& bias) {
  const bool stores_z = p.z.data != nullptr && context.query.description.activation != Activation::none;
  const std::optional<Epilogue> epilogue = fused(context.query.description, bias.data != nullptr, stores_z);
  if (!epilogue || (stores_z && (!fits_aux(p.z) || needs_staging(p.y)))) return false;
  const Matrix to = target(p.y, p.room);
  if (!multiply_library(context, p.x, p.w, to, {.epilogue = *epilogue, .bias = bias.data, .aux = stores_z ? p.z : Matrix{}}))
    return false;
  if (to.data != p.y.data) copy_matrix(to, p.y, false, context.stream);
  return true;
}

/// The product with its bias first, then the activation from what was stored.
void forward_in_steps(const Context& context, const ForwardProduct& p, const Matrix& bias) {
  const Activation activation = context.query.description.activation;
  const Matrix& first = p.z.data != nullptr ? p.z : p.y;
  Matrix to = target(first, p.room);
  const Ending ending{.epilogue = bias.data != nullptr ? Epilogue::bias : Epilogue::none, .bias = bias.data};
  const bool ended = multiply_library(context, p.x, p.w, to, ending);
  if (!ended && multiply_library(context, p.x, p.w, to, {})) {
    activate_matrix(to, bias, to, Activation::none, context.stream);
  } else if (!ended) {
    to = first;
    multiply_plain({.a = p.x, .b = p.w, .bias = bias, .c = to}, context.stream);
  }
  if (to.data != first.data && p.z.data != nullptr) copy_matrix(to, p.z, false, context.stream);
  if (activation != Activation::none || to.data != p.y.data) activate_matrix(to, {}, p.y, activation, context.stream);
}

void forward(const LinearQuery& query, const LinearForward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  const ForwardRooms rooms = forward_rooms(query, arena);
  const Context context{query, stream_of(stream), rooms.library};
  const Matrix y = matrix_of(t.y);
  if (y.rows == 0 || y.columns == 0) return;
  const Matrix weight = staged(context, matrix_of(t.weight), rooms.weight);
  ForwardProduct p{.x = staged(context, matrix_of(t.x), rooms.x),
                   .w = query.description.layout == LinearLayout::outputs_inputs ? weight.transposed() : weight,
                   .bias = matrix_of(t.bias),
                   .y = y,
                   .z = matrix_of(t.preactivation),
                   .bias_room = rooms.bias,
                   .room = rooms.y};
  const Matrix bias = dense_bias(context, p);
  p.bias = bias;
  if (!forward_fused(context, p, bias)) {
    forward_in_steps(context, p, bias);
  } else if (p.z.data != nullptr && query.description.activation == Activation::none) {
    copy_matrix(y, p.z, false, context.stream);
  }
}

/// dweight and dbias from dz and x, whose product may sum dz over the batch on its way.
void weight_gradient(const Context& context, const LinearBackward& t, const Matrix& x, const Matrix& dz,
                     const BackwardRooms& rooms) {
  const bool outputs_first = context.query.description.layout == LinearLayout::outputs_inputs;
  const Matrix dweight = matrix_of(t.dweight), dbias = matrix_of(t.dbias);
  const Matrix a = outputs_first ? dz.transposed() : x.transposed(), b = outputs_first ? x : dz;
  const bool sums = t.dbias.given() && !t.accumulate && dbias.step == 1 && dbias.dtype == dweight.dtype &&
                    reinterpret_cast<std::uintptr_t>(dbias.data) % 16 == 0;
  const Matrix to = t.dweight.given() ? target(dweight, rooms.dweight) : dweight;
  const bool copied = to.data != dweight.data;
  bool summed = false;
  if (t.dweight.given() && dweight.rows > 0 && dweight.columns > 0) {
    const Epilogue epilogue = outputs_first ? Epilogue::sum_of_b : Epilogue::sum_of_a;
    summed = sums && multiply_library(context, a, b, to, {.epilogue = epilogue, .bias = dbias.data});
    if (!summed) multiply(context, a, b, to, t.accumulate && !copied);
    if (copied) copy_matrix(to, dweight, t.accumulate, context.stream);
  }
  if (t.dbias.given() && !summed) sum_rows(dz, dbias, t.accumulate, rooms.sums, context.stream);
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
  if (t.dx.given()) {
    const Matrix weight = staged(context, matrix_of(t.weight), rooms.weight), dx = matrix_of(t.dx), to = target(dx, rooms.dx);
    multiply(context, dz, query.description.layout == LinearLayout::outputs_inputs ? weight : weight.transposed(), to, false);
    if (to.data != dx.data) copy_matrix(to, dx, false, context.stream);
  }
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

Verdict accepts_plain(const LinearQuery& query) {
  const Verdict storage = accept_storage(query.description.dtype);
  return storage.accepted ? accept_device(query.device) : storage;
}

Verdict accepts(const LinearQuery& query) {
  const Verdict plain = accepts_plain(query);
  if (!plain.accepted) return plain;
  if (query.options.deterministic) return decline("cuBLASLt may add in another order for another batch");
  if (!query.device.present) return accept();
  const BackendStatus library = cublaslt::status();
  return library.usable ? accept() : decline(library.reason);
}

/// The algorithms for dense tensors, or for their staged copies.
void explain(const LinearQuery& query, Explanation& out) {
  if (!query.device.present) return;
  const CurrentCard current(query.device.device.index);
  for (std::size_t i = 0; i < out.gemms.size(); ++i) {
    const DenseProduct dense = dense_product(query, static_cast<int>(i));
    const std::optional<Form> form = form_of(query, dense.a, dense.b, dense.c, {});
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
    activate_matrix(first, {}, y, query.description.activation, stream_of(stream));
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
                       .accepts = accepts_plain,
                       .footprint = arena_footprint<plain_rooms, LinearQuery>,
                       .forward = plain_forward,
                       .backward = plain_backward};

}  // namespace everglow::cuda
