// Views of a card's memory that reach past 2^31 elements: few rows, far apart, in 9 GiB of which nothing else is touched. What
// comes must be what the same rows give side by side.
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace everglow {
namespace {

using test::HostTensor;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t beyond = std::int64_t{1} << 31;
constexpr std::int64_t margin = 64;  // elements before and after a row that nobody may write

/// Dense on the host, and on the card in two places: side by side, and with rows of one dimension so far apart that the last one
/// begins past 2^31 elements.
struct Twice {
  HostTensor host;
  TensorView far, around;  // `around` is the rows of `far` with their margins
  Buffer memory;
  TensorView near;

  void put() const { copy(far, host), copy(near, host); }
  /// Margins and rows full of NaN, as an output should be found.
  void poison() {
    HostTensor nan(around.dtype, {around.size(0), around.size(1)});
    nan.poison();
    copy(around, nan);
    host.poison();
    copy(near, host);
  }
  /// What is wrong; empty: far is what near is, and no margin was written.
  std::string differs() {
    HostTensor came(around.dtype, {around.size(0), around.size(1)});
    copy(came, around);
    const std::vector<double> all = came.values();
    for (std::int64_t row = 0; row < around.size(0); ++row)
      for (std::int64_t i = 0; i < margin; ++i)
        for (const std::int64_t at : {row * around.size(1) + i, (row + 1) * around.size(1) - 1 - i})
          if (!std::isnan(all[static_cast<std::size_t>(at)])) return "written beside row " + std::to_string(row);
    copy(host, near);
    const std::vector<double> expected = host.values();
    copy(host, far);
    return test::compare(host.values(), expected, 0);
  }
};

class FarViews : public test::OnCard {
 protected:
  void SetUp() override {
    OnCard::SetUp();
    if (IsSkipped()) return;
    try {
      memory_ = Buffer(static_cast<std::size_t>(elements) * 4, card);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      GTEST_SKIP() << "not tested: views past 2^31 elements need 9 GiB of a card's memory: " << error.what();
    }
  }
  /// Rows of dimension `dim` at the same distance for every tensor of equal shape[dim] and `slot_width`, so that they interleave.
  Twice twice(DType dtype, const Shape& shape, int dim, std::int64_t slot, std::int64_t slot_width) const {
    const auto rank = static_cast<int>(shape.size());
    Twice out{.host = HostTensor(dtype, shape),
              .far = TensorView(memory_.data(), dtype, shape, card),
              .around = {},
              .memory = {},
              .near = {}};
    std::int64_t inner = 1;
    for (int i = rank - 1; i >= 0; --i)
      if (i != dim) out.far.strides[static_cast<std::size_t>(i)] = inner, inner *= shape[static_cast<std::size_t>(i)];
    const std::int64_t rows = shape[static_cast<std::size_t>(dim)], period = slots * slot_width;
    const std::int64_t stride = (beyond / std::max<std::int64_t>(rows - 1, 1) + period) / period * period;
    const std::int64_t begin = slot * slot_width;
    EXPECT_LE(inner + 2 * margin, slot_width);
    EXPECT_LE(stride * (rows - 1) + period, elements);
    out.far.strides[static_cast<std::size_t>(dim)] = stride;
    out.far.data = address(begin + margin, dtype);
    out.around = TensorView(address(begin, dtype), dtype, {rows, inner + 2 * margin}, card);
    out.around.strides[0] = stride;
    // Rows side by side start on 256 bytes too: other alignments may take another kernel and add in another order.
    const std::int64_t columns = shape.back(), near_stride = (columns + margin - 1) / margin * margin;
    out.memory = Buffer(static_cast<std::size_t>(out.far.elements() / columns * near_stride) * size_of(dtype), card);
    out.near = TensorView(out.memory.data(), dtype, shape, card);
    for (int i = 0; i + 1 < rank; ++i) {
      std::int64_t& step = out.near.strides[static_cast<std::size_t>(i)];
      step = step / columns * near_stride;
    }
    return out;
  }
  std::byte* address(std::int64_t element, DType dtype) const {
    return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(element) * size_of(dtype);
  }

  static constexpr std::int64_t slots = 16;
  static constexpr std::int64_t elements = beyond + (std::int64_t{1} << 26);
  Buffer memory_;
};

/// Whole numbers, so that sums are exact in any order: the CPU's result is the only one.
TEST_F(FarViews, OfALinearLayer) {
  for (const char* row : {"cublaslt.linear", "cuda.linear"})
    for (const DType dtype : {DType::f16, DType::f32})
      for (const std::int64_t n : {48, 45}) {
        const std::int64_t inputs = n + 18;
        SCOPED_TRACE(testing::Message() << row << ' ' << name(dtype) << ' ' << n);
        const LinearDescription d{.inputs = inputs, .outputs = n, .dtype = dtype, .training = true};
        const LinearPlan plan(d, {n}, card, {.force = row}), cpu(d, {n});
        const Buffer scratch(plan.workspace_bytes(), card), host_scratch(cpu.workspace_bytes(), Device::cpu());
        constexpr std::int64_t width = 512;
        Twice x = twice(dtype, {n, inputs}, 0, 0, width), w = twice(dtype, {n, inputs}, 0, 1, width);
        Twice y = twice(dtype, {n, n}, 0, 2, width), dy = twice(dtype, {n, n}, 0, 3, width);
        Twice dx = twice(dtype, {n, inputs}, 0, 4, width), dw = twice(dtype, {n, inputs}, 0, 5, width);
        x.host.integers(1, -2, 2), w.host.integers(2, -2, 2), dy.host.integers(3, -2, 2);
        for (const Twice* in : {&x, &w, &dy}) in->put();
        for (Twice* out : {&y, &dx, &dw}) out->poison();
        plan.forward({.x = x.far, .weight = w.far, .y = y.far}, scratch, stream);
        plan.backward({.dy = dy.far, .x = x.far, .weight = w.far, .dx = dx.far, .dweight = dw.far}, scratch, stream);
        stream.synchronize();
        cpu.forward({.x = x.host, .weight = w.host, .y = y.host}, host_scratch);
        cpu.backward({.dy = dy.host, .x = x.host, .weight = w.host, .dx = dx.host, .dweight = dw.host}, host_scratch);
        for (Twice* out : {&y, &dx, &dw}) copy(out->near, out->host);
        EXPECT_EQ("", y.differs()) << "y";
        EXPECT_EQ("", dx.differs()) << "dx";
        EXPECT_EQ("", dw.differs()) << "dweight";
      }
}

/// A warp, a block, a cluster and two launches to a row.
TEST_F(FarViews, OfASoftmax) {
  for (const DType dtype : {DType::f32, DType::f16})
    for (const std::int64_t columns : {100, 5000, 100003, 1000003}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << ' ' << columns);
      constexpr std::int64_t rows = 3;
      const std::int64_t width = (columns + 2 * margin + margin - 1) / margin * margin;
      const SoftmaxPlan plan({.dtype = dtype}, {rows, columns}, card);
      const Buffer scratch(plan.workspace_bytes(), card);
      Twice x = twice(dtype, {rows, columns}, 0, 0, width), y = twice(dtype, {rows, columns}, 0, 1, width);
      Twice dy = twice(dtype, {rows, columns}, 0, 2, width), dx = twice(dtype, {rows, columns}, 0, 3, width);
      x.host.uniform(1, -4, 4), dy.host.uniform(2, -1, 1);
      x.put(), dy.put(), y.poison(), dx.poison();
      plan.forward({.x = x.near, .y = y.near}, scratch, stream);
      plan.forward({.x = x.far, .y = y.far}, scratch, stream);
      plan.backward({.y = y.near, .dy = dy.near, .dx = dx.near}, scratch, stream);
      plan.backward({.y = y.far, .dy = dy.far, .dx = dx.far}, scratch, stream);
      stream.synchronize();
      EXPECT_EQ("", y.differs()) << "y";
      EXPECT_EQ("", dx.differs()) << "dx";
    }
}

/// One row of more than 2^31 columns, in place: -inf but for four equal ones, among them the last, so that each is a quarter.
TEST_F(FarViews, OfASoftmaxRowThatReachesThere) {
  constexpr std::int64_t columns = beyond + 12345;
  const std::int64_t places[] = {7, (std::int64_t{1} << 30) + 1, beyond + 5, columns - 1};
  const TensorView row(memory_.data(), DType::f16, {1, columns}, card);
  HostTensor block(DType::f16, {1, 1 << 20}), one(DType::f16, {1, 1});
  block.fill(-std::numeric_limits<double>::infinity()), one.fill(3);
  copy(row.narrow(1, 0, 1 << 20), block, stream);
  for (std::int64_t done = 1 << 20; done < columns; done *= 2) {
    const std::int64_t n = std::min(done, columns - done);
    copy(row.narrow(1, done, n), row.narrow(1, 0, n), stream);
  }
  for (const std::int64_t place : places) copy(row.narrow(1, place, 1), one, stream);
  const SoftmaxPlan plan({.dtype = DType::f16}, {1, columns}, card);
  const Buffer scratch(plan.workspace_bytes(), card);
  plan.forward({.x = row, .y = row}, scratch, stream);
  for (const std::int64_t place : places)
    for (const std::int64_t at : {place - 1, place, place + 1}) {
      if (at >= columns) continue;
      copy(one, row.narrow(1, at, 1), stream);
      stream.synchronize();
      EXPECT_EQ(one.at(0), at == place ? 0.25 : 0) << at;
    }
}

/// Batch rows, sequence rows and heads far apart, on every row of the table, plain and with what only the general kernels take.
TEST_F(FarViews, OfAttention) {
  const Shape shape{3, 70, 2, 64};
  AttentionDescription plain{.heads = 2, .head_dim = 64, .causal = true, .dtype = DType::f16, .training = true}, general = plain;
  general.window_left = 20, general.softcap = 3;
  const AttentionSizes sizes{.batch = shape[0], .queries = shape[1], .keys = shape[1]};
  for (const char* row : {"sm80.attention_flash2", "sm80.attention_flash1", "cuda.attention_standard"})
    for (const AttentionDescription& d : {plain, general})
      for (const int dim : {0, 1, 2}) {
        if (row == std::string("sm80.attention_flash1") && d.window_left >= 0) continue;
        SCOPED_TRACE(testing::Message() << row << (d.window_left >= 0 ? " general" : "") << ", dimension " << dim);
        const AttentionPlan plan(d, sizes, card, {.force = row, .deterministic = true});
        const Buffer scratch(plan.workspace_bytes(), card), statistics(3 * 70 * 2 * 4, card);
        const TensorView lse(statistics.data(), DType::f32, {3, 2, 70}, card);
        constexpr std::int64_t width = 1 << 15;
        const auto tensor = [&](std::int64_t slot) { return twice(DType::f16, shape, dim, slot, width); };
        Twice q = tensor(0), k = tensor(1), v = tensor(2), d_o = tensor(3);
        Twice o = tensor(4), dq = tensor(5), dk = tensor(6), dv = tensor(7);
        std::uint64_t number = 0;
        for (Twice* in : {&q, &k, &v, &d_o}) in->host.uniform(++number, -1, 1), in->put();
        for (Twice* out : {&o, &dq, &dk, &dv}) out->poison();
        const auto both = [&](TensorView Twice::*at) {
          plan.forward({.q = q.*at, .k = k.*at, .v = v.*at, .o = o.*at, .lse = lse}, scratch, stream);
          AttentionBackward b{.q = q.*at, .k = k.*at, .v = v.*at, .o = o.*at, .lse = lse};
          b.d_o = d_o.*at, b.dq = dq.*at, b.dk = dk.*at, b.dv = dv.*at;
          plan.backward(b, scratch, stream);
        };
        both(&Twice::near), both(&Twice::far);
        stream.synchronize();
        EXPECT_EQ("", o.differs()) << "o";
        EXPECT_EQ("", dq.differs()) << "dq";
        EXPECT_EQ("", dk.differs()) << "dk";
        EXPECT_EQ("", dv.differs()) << "dv";
      }
}

}  // namespace
}  // namespace everglow
