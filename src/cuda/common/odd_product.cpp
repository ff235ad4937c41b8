// Odd products: copies, parts and rests.
#include "cuda/common/odd_product.hpp"

#include "core/hash.hpp"
#include "core/rounding.hpp"
#include "cuda/common/linear_layout.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace everglow::cuda {
namespace {

using plan::OddScheme;

bool along_k(const Matrix& a) { return !stored(a)->transposed; }

/// The matrix as it lies in memory, rows along their elements, and its copy in a room with `rows` of them.
struct Copy {
  Matrix from, to;
};
Copy copy_of(const Matrix& lying, std::int64_t rows, void* room) {
  Matrix shape = lying;
  shape.rows = rows, shape.columns = rounded_up(lying.columns, unit_of(lying.dtype));
  return {lying, staged_matrix(shape, room)};
}

/// Everything that a scheme depends on.
using Key = std::array<std::int64_t, 15>;
Key key_of(const LinearQuery& query, const plan::OddProduct& p) {
  const DeviceFigures& f = query.device.figures;
  const auto bits = [](double value) { return std::bit_cast<std::int64_t>(value); };
  const auto operand = [](const plan::OddOperand& o) { return o.alignment * 4 + o.filled * 2 + o.may_stage; };
  const std::int64_t flags = p.a_along_k + 2 * p.b_along_n + 4 * p.may_widen + 8 * p.accumulate + 16 * p.leaves_rows +
                             32 * static_cast<std::int64_t>(query.description.dtype) +
                             1024 * static_cast<std::int64_t>(query.options.math) + 4096 * p.c_element;
  return {p.m,
          p.n,
          p.k,
          flags,
          operand(p.a),
          operand(p.b),
          operand(p.c),
          f.units,
          f.capability,
          f.tensor_alignment,
          bits(f.tf32_tflops),
          bits(f.f16_tflops),
          bits(f.bf16_tflops),
          bits(f.bandwidth_gbs * f.achieved_bandwidth),
          bits(f.achieved_math)};
}

/// A choice takes microseconds, and a layer runs with the same sizes again and again: each thread keeps its last ones.
OddScheme known_scheme(const LinearQuery& query, const plan::OddProduct& product) {
  constexpr std::size_t slots = 256;
  thread_local std::vector<std::pair<Key, OddScheme>> known(slots);
  const Key key = key_of(query, product);
  auto& [known_key, scheme] = known[(hash_of(key) >> 32) % slots];
  if (known_key == key) return scheme;  // no key is all zeros: alignments are not
  known_key = key;
  const plan::Machine machine =
      plan::machine_of(query.device.figures, {.dtype = query.description.dtype, .math = query.options.math});
  return scheme = plan::choose_odd(machine, product);
}

}  // namespace

OddScheme scheme_of(const LinearQuery& query, const LayerProduct& p) {
  const OddScheme given{.m = p.c.rows, .n = p.c.columns, .k = p.a.columns};
  const std::optional<Orientation> a = stored(p.a), b = stored(p.b), c = stored(p.c);
  if (!a || !b || !c || c->transposed || on_units(p.a, p.b, p.c)) return given;
  return known_scheme(query, {.m = given.m,
                              .n = given.n,
                              .k = given.k,
                              .a_along_k = !a->transposed,
                              .b_along_n = !b->transposed,
                              .c_element = static_cast<std::int64_t>(size_of(p.c.dtype)),
                              .a = {alignment_of(p.a), p.a_filled, p.room_a != nullptr},
                              .b = {alignment_of(p.b), p.b_filled, p.room_b != nullptr},
                              .c = {alignment_of(p.c), false, p.room_c != nullptr},
                              .may_widen = p.wide != nullptr,
                              .accumulate = p.accumulate,
                              .leaves_rows = p.leaves_rows});
}

Prepared prepare(const LayerProduct& p, const OddScheme& s, Moves& moves) {
  Prepared out{p.a, p.b, p.c};
  if (s.stage_a) {
    const bool rows_of_k = !along_k(p.a);
    const Copy copy = copy_of(rows_of_k ? p.a.transposed() : p.a, rows_of_k ? p.a.columns : p.a.rows, p.room_a);
    moves.add(copy.from, copy.to);
    out.a = rows_of_k ? copy.to.transposed() : copy.to;
  }
  if (s.stage_b) {
    const bool rows_of_n = stored(p.b)->transposed;
    const Copy copy =
        copy_of(rows_of_n ? p.b.transposed() : p.b, rows_of_n ? std::max(s.n, p.b.columns) : std::max(s.k, p.b.rows), p.room_b);
    moves.add(copy.from, copy.to);
    out.b = rows_of_n ? copy.to.transposed() : copy.to;
  }
  // A filled operand stands with more columns than it says.
  out.a.rows = s.m, out.a.columns = s.k, out.b.rows = s.k, out.b.columns = s.n;
  Matrix shape = p.c;
  shape.rows = s.m, shape.columns = s.n;
  if (s.widen) shape.dtype = DType::f32;
  out.c = s.widen ? staged_matrix(shape, p.wide) : s.stage_c ? staged_matrix(shape, p.room_c) : shape;
  return out;
}

void finish(const LayerProduct& p, const OddScheme& s, const Prepared& prepared, Moves& moves, cudaStream_t stream) {
  const std::int64_t rows = std::min(s.m, p.c.rows), columns = std::min(s.n, p.c.columns), left = p.a.columns - s.k;
  const Matrix from = prepared.c.part_of_rows(0, rows).part_of_columns(0, columns),
               to = p.c.part_of_rows(0, rows).part_of_columns(0, columns);
  if (s.widen) {
    add_narrow({.wide = from, .a = p.a.part_of_columns(s.k, left), .b = p.b.part_of_rows(s.k, left), .c = to}, stream);
  } else if (s.stage_c && !p.accumulate) {
    moves.add(from, to);
  } else if (s.stage_c) {
    copy_matrix(from, to, true, stream);
  }
  moves.start(stream);
}

void start_with_rest(const LayerProduct& p, const OddScheme& s, const Matrix& sums_of_a, const Matrix& sums_of_b, Moves& moves,
                     cudaStream_t stream) {
  const std::int64_t rows = std::min(s.m, p.c.rows), left_n = p.c.columns - s.n, left_m = p.c.rows - s.m;
  if (left_n > 0) {
    const Matrix a = p.a.part_of_rows(0, rows), b = p.b.part_of_columns(s.n, left_n),
                 c = p.c.part_of_rows(0, rows).part_of_columns(s.n, left_n);
    if (!along_k(p.a))
      sum_weighted({.a = b,
                    .b = a.transposed(),
                    .c = c.transposed(),
                    .sums = sums_of_b.part_of_columns(s.n, left_n),
                    .accumulate = p.accumulate},
                   moves.taken(), stream);
    else if (!p.accumulate)
      multiply_narrow({.a = a, .b = b, .bias = {}, .c = c, .z = {}}, moves.taken(), stream);
    else
      multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = true}, stream);
  }
  if (left_m > 0)
    sum_weighted({.a = p.a.part_of_rows(s.m, left_m).transposed(),
                  .b = p.b,
                  .c = p.c.part_of_rows(s.m, left_m),
                  .sums = sums_of_a.part_of_columns(s.m, left_m),
                  .accumulate = p.accumulate},
                 moves.taken(), stream);
  moves.start(stream);
}

void multiply(const Context& context, const Prepared& p, bool accumulate) {
  if (p.c.rows == 0 || p.c.columns == 0) return;
  if (!multiply_library(context, p.a, p.b, p.c, {.accumulate = accumulate}))
    multiply_plain({.a = p.a, .b = p.b, .bias = {}, .c = p.c, .accumulate = accumulate}, context.stream);
}

void multiply(const Context& context, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  const LayerProduct product{.a = a, .b = b, .c = c, .accumulate = accumulate};
  const OddScheme scheme = scheme_of(context.query, product);
  Moves moves;
  const Prepared prepared = prepare(product, scheme, moves);
  start_with_rest(product, scheme, {}, {}, moves, context.stream);
  multiply(context, prepared, accumulate);
}

}  // namespace everglow::cuda
