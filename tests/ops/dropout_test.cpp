// Dropout: the mask is the one that philox.hpp defines, on every row and layout; its rate; and its gradient uses the same mask.
#include "core/philox.hpp"
#include "ops/small_layers.hpp"

#include <everglow/attention.hpp>
#include <everglow/recurrent.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace everglow {
namespace {

using test::HostTensor;

PointwisePlan dropout_plan(const std::string& row, float probability, std::int64_t elements, int threads = 2) {
  return PointwisePlan({.operation = Pointwise::dropout, .dropout = probability}, {elements}, Device::cpu(),
                       {.threads = threads, .force = row});
}

TEST(Dropout, EveryRowDropsTheElementsThatPhiloxNames_sanitize) {
  constexpr std::uint64_t seed = 0x0123456789ABCDEFULL, offset = 0xFFFFFFF0ULL;  // the counter passes 2^32 on the way
  constexpr float probability = 0.37F;
  HostTensor a(DType::f32, {31, 67}), y(DType::f32, {31, 67}, 70), turned(DType::f32, {67, 31});
  a.fill(1);
  for (const auto& row : kernels("pointwise", DeviceKind::cpu))
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(row);
      const auto plan = dropout_plan(row, probability, 31 * 67, threads);
      plan.run({.a = a, .y = y, .dropout_seed = seed, .dropout_offset = offset});
      plan.run({.a = a, .y = turned.view().transposed(0, 1), .dropout_seed = seed, .dropout_offset = offset});
      const auto values = y.values(), other = test::gathered(turned.view().transposed(0, 1));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool keep = dropout_keeps(seed, offset, i, dropout_threshold(static_cast<double>(probability)));
        EXPECT_EQ(values[i] != 0, keep) << i;
        EXPECT_EQ(values[i], other[i]) << i;
      }
    }
}

TEST(Dropout, ForwardAndGradientUseOneMask) {
  HostTensor x(DType::f32, {5000}), residual(DType::f32, {5000}), y(DType::f32, {5000}), dy(DType::f32, {5000}),
      dx(DType::f32, {5000});
  x.fill(1);
  residual.fill(3);
  dy.fill(2);
  for (const auto& row : kernels("pointwise", DeviceKind::cpu)) {
    const auto plan = dropout_plan(row, 0.25F, 5000);
    plan.run({.a = x, .b = residual, .y = y, .dropout_seed = 9, .dropout_offset = 4});
    plan.run({.a = dy, .y = dx, .dropout_seed = 9, .dropout_offset = 4});
    for (std::int64_t i = 0; i < 5000; ++i) EXPECT_EQ(dx.at(i) != 0, y.at(i) != 3) << row << ' ' << i;
  }
}

/// Seed and offset in memory are the numbers that stand there when the run begins, whatever the stride.
TEST(Dropout, SeedAndOffsetMayLieInMemory_sanitize) {
  HostTensor state(DType::i64, {2}), wide(DType::i64, {2, 3});
  state.put(0, 77), state.put(1, 12), wide.put(0, 77), wide.put(3, 12);
  ConstTensorView strided = wide;
  strided.rank = 1;
  HostTensor x(DType::f32, {1, 9, 2, 8}), numbers(DType::f32, {1, 9, 2, 8}), memory(DType::f32, {1, 9, 2, 8});
  x.uniform(1, -1, 1);
  const AttentionPlan attention({.heads = 2, .head_dim = 8, .dropout = 0.5F}, {.batch = 1, .queries = 9, .keys = 9});
  const test::Scratch scratch(attention.workspace_bytes());
  const Workspace workspace(scratch.data(), scratch.bytes());
  attention.forward({.q = x, .k = x, .v = x, .o = numbers, .dropout_seed = 77, .dropout_offset = 12}, workspace);
  for (const ConstTensorView& view : {ConstTensorView(state), strided}) {
    memory.poison();
    attention.forward({.q = x, .k = x, .v = x, .o = memory, .dropout_state = view}, workspace);
    EXPECT_EQ(memory.values(), numbers.values());
    const auto plan = dropout_plan("cpu.pointwise", 0.5F, 144);
    HostTensor a(DType::f32, {144}), b(DType::f32, {144});
    plan.run({.a = x.view().reshaped({144}), .y = a, .dropout_seed = 77, .dropout_offset = 12});
    plan.run({.a = x.view().reshaped({144}), .y = b, .dropout_state = view});
    EXPECT_EQ(a.values(), b.values());
  }
}

TEST(Dropout, SeedAndOffsetOfARecurrentStackMayLieInMemory_sanitize) {
  HostTensor state(DType::i64, {2}), x(DType::f32, {5, 3, 4}), numbers(DType::f32, {5, 3, 4}), memory(DType::f32, {5, 3, 4});
  HostTensor dy(DType::f32, {5, 3, 4}), dx(DType::f32, {5, 3, 4}), other(DType::f32, {5, 3, 4}), w(DType::f32, {4, 4});
  state.put(0, 77), state.put(1, 12);
  x.uniform(1, -1, 1), dy.uniform(2, -1, 1), w.uniform(3, -1, 1);
  const RecurrentPlan plan({.cell = Cell::tanh, .inputs = 4, .hidden = 4, .layers = 2, .dropout = 0.5F, .training = true},
                           {.steps = 5, .batch = 3});
  const test::Scratch scratch(plan.workspace_bytes()), reserve(plan.reserve_bytes());
  const TensorView kept(reserve.data(), DType::u8, {static_cast<std::int64_t>(reserve.bytes())});
  const std::vector<RecurrentWeights> weights(2, {.w_ih = w, .w_hh = w});
  const auto run = [&](HostTensor& y, HostTensor& gradient, std::uint64_t seed, std::uint64_t offset, const ConstTensorView& view) {
    plan.forward({.x = x,
                  .weights = weights,
                  .y = y,
                  .reserve = kept,
                  .dropout_seed = seed,
                  .dropout_offset = offset,
                  .dropout_state = view},
                 {scratch.data(), scratch.bytes()});
    plan.backward({.x = x,
                   .weights = weights,
                   .y = y,
                   .reserve = kept,
                   .dy = dy,
                   .dx = gradient,
                   .dropout_seed = seed,
                   .dropout_offset = offset,
                   .dropout_state = view},
                  {scratch.data(), scratch.bytes()});
  };
  run(numbers, dx, 77, 12, {});
  run(memory, other, 0, 0, state);
  EXPECT_EQ(memory.values(), numbers.values());
  EXPECT_EQ(dx.values(), other.values());
  run(memory, other, 78, 12, {});
  EXPECT_NE(memory.values(), numbers.values());
}

TEST(Dropout, KeepsTheShareThatWasAskedFor) {
  // n independent draws with probability p of dropping: the count is binomial, so six standard deviations, 6 sqrt(n p (1 - p)), are
  // passed once in 5e8 runs; floor(p 2^32) shifts p by less than 2^-32.
  constexpr std::int64_t n = 1 << 20;
  HostTensor a(DType::f32, {n}), y(DType::f32, {n});
  a.fill(1);
  for (const float p : {0.1F, 0.2F, 0.5F, 0.9F}) {
    dropout_plan("", p, n).run({.a = a, .y = y, .dropout_seed = test::seed() + 17, .dropout_offset = 5});
    double dropped = 0;
    for (std::int64_t i = 0; i < n; ++i) dropped += y.at(i) == 0 ? 1 : 0;
    const double expected = static_cast<double>(n) * p;
    EXPECT_LE(std::fabs(dropped - expected), 6 * std::sqrt(expected * (1 - p)) + 1) << p;
  }
}

TEST(Dropout, OffsetsContinueTheSequence) {
  HostTensor a(DType::f32, {800}), whole(DType::f32, {800}), parts(DType::f32, {800});
  a.fill(1);
  const auto plan = dropout_plan("", 0.5F, 800);
  EXPECT_EQ(plan.dropout_counters(), 200U);
  EXPECT_EQ(dropout_plan("", 0.5F, 801).dropout_counters(), 201U);
  EXPECT_EQ(PointwisePlan({}, {800}).dropout_counters(), 0U);
  plan.run({.a = a, .y = whole, .dropout_seed = 1, .dropout_offset = 10});
  plan.run({.a = a.view().narrow(0, 0, 400), .y = parts.view().narrow(0, 0, 400), .dropout_seed = 1, .dropout_offset = 10});
  plan.run({.a = a.view().narrow(0, 400, 400), .y = parts.view().narrow(0, 400, 400), .dropout_seed = 1, .dropout_offset = 110});
  EXPECT_EQ(whole.values(), parts.values());
}

TEST(Dropout, DroppedNanIsZero) {
  HostTensor a(DType::f32, {4096}), y(DType::f32, {4096});
  a.fill(std::nan(""));
  for (const auto& row : kernels("pointwise", DeviceKind::cpu)) {
    dropout_plan(row, 0.5F, 4096).run({.a = a, .y = y, .dropout_seed = 3});
    for (std::int64_t i = 0; i < 4096; ++i)
      EXPECT_EQ(std::isnan(y.at(i)), dropout_keeps(3, 0, static_cast<std::uint64_t>(i), dropout_threshold(0.5))) << row << ' ' << i;
  }
}

TEST(Dropout, ASeedWithoutDropoutIsRefused) {
  const HostTensor a(DType::f32, {1, 1, 1, 4}), b(DType::f32, {1, 1, 1, 4});
  const auto text = [](const std::string& where, int seed, int offset) {
    return "[" + where + "] dropout_seed, dropout_offset: expected 0 for an operation that drops nothing, got " +
           std::to_string(seed) + " and " + std::to_string(offset);
  };
  EXPECT_EQ(test::error_of([&] { PointwisePlan({}, {4}).run({.a = a, .y = b, .dropout_offset = 2}); }),
            text("pointwise.run", 0, 2));
  const AttentionPlan attention({.head_dim = 4}, {.batch = 1, .queries = 1, .keys = 1});
  EXPECT_EQ(test::error_of([&] { attention.forward({.q = a, .k = a, .v = a, .o = b, .dropout_seed = 3}, {}); }),
            text("attention.forward", 3, 0));
  const HostTensor x(DType::f32, {1, 1, 1}), y(DType::f32, {1, 1, 1}), w(DType::f32, {4, 1});
  const RecurrentWeights weights[] = {{.w_ih = w, .w_hh = w}};
  const RecurrentPlan recurrent({.inputs = 1, .hidden = 1}, {.steps = 1, .batch = 1});
  EXPECT_EQ(test::error_of([&] { recurrent.forward({.x = x, .weights = weights, .y = y, .dropout_offset = 9}, {}); }),
            text("recurrent.forward", 0, 9));
}

}  // namespace
}  // namespace everglow
