// Rooms of the linear rows.
#include "cuda/common/linear_layout.hpp"

#include "core/rounding.hpp"
#include "cuda/common/odd_product.hpp"

namespace everglow::cuda {
namespace {

constexpr std::int64_t needed = 16, line = 64;  // bytes

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
};

/// Rows, or elements of a vector, past the last to a whole size.
std::int64_t most_zeros(const LinearQuery& q) { return unit_of(q.description.dtype) - 1; }

bool made(const LinearQuery& q) { return q.description.activation != Activation::none; }

enum class Pass { forward, activation_gradient, weight_gradient };
constexpr Pass passes[] = {Pass::forward, Pass::activation_gradient, Pass::weight_gradient};

/// The product of a pass on tensors without memory, dense, or on preferred strides where dense rows are off 16 bytes, with room for
/// everything.
LayerProduct product_of(const LinearQuery& query, Pass pass, bool strided, bool dz_filled) {
  static std::byte somewhere[line];
  const Sizes s(query);
  const auto tensor = [&](std::int64_t rows, std::int64_t columns) {
    const Matrix m{nullptr, rows, columns, columns, 1, query.description.dtype};
    return strided && needs_staging(m) ? staged_matrix(m, nullptr) : m;
  };
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs, forward = pass == Pass::forward;
  const Matrix x = tensor(s.batch, s.inputs), w = tensor(s.weight_rows, s.weight_columns), given = tensor(s.batch, s.outputs),
               y = dz_filled && !forward ? staged_matrix(given, nullptr) : given;
  LayerProduct out{.a = x, .b = outputs_first ? w.transposed() : w, .c = y};
  if (pass == Pass::activation_gradient) out = {.a = y, .b = outputs_first ? w : w.transposed(), .c = x};
  if (pass == Pass::weight_gradient)
    out = {.a = outputs_first ? y.transposed() : x.transposed(), .b = outputs_first ? x : y, .c = w};
  out.a_filled = dz_filled && (pass == Pass::activation_gradient || (pass == Pass::weight_gradient && outputs_first));
  out.b_filled = dz_filled && pass == Pass::weight_gradient && !outputs_first;
  out.room_a = out.room_b = out.room_c = somewhere;
  if (pass == Pass::activation_gradient) out.wide = somewhere;
  return out;
}

/// Calls f with each scheme that a run of the pass may take.
template <class F>
void each_scheme(const LinearQuery& query, Pass pass, const F& f) {
  const std::int64_t unit = unit_of(query.description.dtype);
  if (query.description.inputs % unit == 0 && query.description.outputs % unit == 0) return;  // all are whole
  for (const bool strided : {false, true})
    for (const bool dz_filled : {false, true}) {
      if (pass == Pass::forward ? dz_filled : made(query) && !dz_filled) continue;
      f(scheme_of(query, product_of(query, pass, strided, dz_filled)));
    }
}

void* take(Arena& arena, bool wanted, std::int64_t rows, std::int64_t columns, std::int64_t element) {
  return wanted && rows > 0 && columns > 0 ? arena.take<std::byte>(rows * rounded_up(columns * element, line)) : nullptr;
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
  plan::OddScheme all;
  each_scheme(query, Pass::forward, [&](const plan::OddScheme& one) {
    all.stage_a |= one.stage_a, all.stage_b |= one.stage_b, all.stage_c |= one.stage_c;
  });
  ForwardRooms out;
  out.library = take_library_scratch(arena);
  out.bias = arena.take<std::byte>((s.outputs + most_zeros(query)) * s.element);
  out.x = take(arena, all.stage_a, s.batch, s.inputs, s.element);
  out.weight = take(arena, all.stage_b, s.weight_rows + most_zeros(query), s.weight_columns, s.element);
  out.y = take(arena, all.stage_c, s.batch, s.outputs, s.element);
  return out;
}

BackwardRooms backward_rooms(const LinearQuery& query, Arena& arena) {
  const Sizes s(query);
  const bool outputs_first = query.description.layout == LinearLayout::outputs_inputs;
  plan::OddScheme for_dx;
  bool dz = made(query), x = false, dweight = false;
  each_scheme(query, Pass::activation_gradient, [&](const plan::OddScheme& one) {
    dz |= one.stage_a, for_dx.stage_b |= one.stage_b, for_dx.stage_c |= one.stage_c, for_dx.widen |= one.widen;
  });
  each_scheme(query, Pass::weight_gradient, [&](const plan::OddScheme& one) {
    dz |= outputs_first ? one.stage_a : one.stage_b, x |= outputs_first ? one.stage_b : one.stage_a, dweight |= one.stage_c;
  });
  const std::int64_t zeros = most_zeros(query);
  BackwardRooms out;
  out.library = take_library_scratch(arena);
  out.sums = arena.take<float>(sum_rows_scratch(s.batch, s.outputs));
  out.x = take(arena, x, s.batch, s.inputs, s.element);
  out.weight = take(arena, for_dx.stage_b, s.weight_rows + zeros, s.weight_columns, s.element);
  out.dz = take(arena, dz, s.batch, s.outputs, s.element);
  out.dx = take(arena, for_dx.stage_c, s.batch, s.inputs, s.element);
  out.wide_dx = take(arena, for_dx.widen, s.batch, s.inputs + zeros, sizeof(float));
  // Gradients may be f32 beside 16-bit tensors.
  out.dweight = take(arena, dweight, s.weight_rows + zeros, s.weight_columns + zeros, sizeof(float));
  out.dbias = take(arena, dweight, 1, s.outputs + zeros, sizeof(float));
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

std::int64_t unit_of(DType dtype) { return plan::unit_of(static_cast<std::int64_t>(size_of(dtype))); }

std::int64_t alignment_of(const Matrix& m) {
  const auto size = static_cast<std::int64_t>(size_of(m.dtype));
  const std::int64_t apart = m.step == 1 || m.columns == 1 ? m.stride : m.step;  // from column to column where it is transposed
  const auto bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(m.data)) | (apart * size) | 128;
  return bits & -bits;
}

Matrix staged_matrix(const Matrix& m, void* room) {
  const auto size = static_cast<std::int64_t>(size_of(m.dtype));
  return {room, m.rows, m.columns, rounded_up(m.columns * size, line) / size, 1, m.dtype};
}

std::optional<cublaslt::Form> form_of_pass(const LinearQuery& query, int pass, cublaslt::Epilogue epilogue) {
  const LayerProduct product = product_of(query, passes[pass], true, made(query));
  if (product.c.rows == 0 || product.c.columns == 0) return {};
  const plan::OddScheme scheme = scheme_of(query, product);
  Moves moves;
  const Prepared prepared = prepare(product, scheme, moves);
  const bool stores_z = epilogue == cublaslt::Epilogue::gelu_aux || epilogue == cublaslt::Epilogue::gelu_aux_bias;
  std::optional<cublaslt::Form> out = form_of(query.options.math, prepared.a, prepared.b, prepared.c, {.epilogue = epilogue});
  if (out && stores_z) out->ld_aux = out->ldd;
  return out;
}

}  // namespace everglow::cuda
