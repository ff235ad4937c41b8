// Views, the arena, dispatch by options, copies, buffers, parallel loops, and names of instruction sets.
#include "core/arena.hpp"
#include "core/isa.hpp"
#include "core/parallel.hpp"
#include "ops/small_layers.hpp"

#include <everglow/everglow.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

namespace everglow {
namespace {

using test::error_of;
using test::HostTensor;

TEST(TensorView, NarrowSplitReshapeTranspose_sanitize) {
  HostTensor t(DType::f32, {4, 6});
  std::vector<double> values(24);
  std::iota(values.begin(), values.end(), 0);
  t.set(values);
  const TensorView v = t;
  EXPECT_EQ(test::gathered(v.narrow(1, 2, 3)), (std::vector<double>{2, 3, 4, 8, 9, 10, 14, 15, 16, 20, 21, 22}));
  EXPECT_EQ(test::gathered(v.narrow(-2, 1, 1)), (std::vector<double>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(test::gathered(v.narrow(1, 4, 2).split(0, 2, 2).transposed(0, 1)), (std::vector<double>{4, 5, 16, 17, 10, 11, 22, 23}));
  EXPECT_EQ(test::gathered(v.reshaped({2, 12})), values);
  EXPECT_TRUE(v.dense());
  EXPECT_FALSE(v.narrow(1, 0, 5).dense());
  EXPECT_TRUE(v.narrow(0, 1, 1).narrow(1, 0, 5).dense()) << "one row";
  EXPECT_EQ(v.narrow(1, 0, 0).elements(), 0);
  EXPECT_EQ(to_string(v), "[4, 6] f32 cpu");
  EXPECT_EQ(to_string(TensorView()), "not given");
  EXPECT_EQ(TensorView().elements(), 0);
  EXPECT_EQ(error_of([&] { v.narrow(1, 4, 3); }), "[tensor.narrow] expected a part that lies inside the view");
  EXPECT_EQ(error_of([&] { v.narrow(2, 0, 1); }), "[tensor.narrow] expected a part that lies inside the view");
  EXPECT_EQ(error_of([&] { v.narrow(1, 0, 5).reshaped({20}); }),
            "[tensor.reshaped] expected a dense view and an equal count of elements");
  EXPECT_EQ(error_of([&] { v.split(0, 3, 2); }), "[tensor.split] expected outer x inner to equal the dimension");
  EXPECT_EQ(error_of([] { TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1}); }), "[tensor.view] expected a rank of at most 6");
  EXPECT_EQ(error_of([] { TensorView(nullptr, DType::f32, {3, -1}); }), "[tensor.view] expected sizes of at least 0");
}

TEST(Arena, CountsWhatItHandsOut) {
  const auto take = [](Arena& arena) {
    std::vector<std::byte*> parts;
    parts.push_back(arena.take<std::byte>(1));
    parts.push_back(reinterpret_cast<std::byte*>(arena.take<double>(9)));
    parts.push_back(reinterpret_cast<std::byte*>(arena.take<float>(0)));
    parts.push_back(reinterpret_cast<std::byte*>(arena.take<std::int64_t>(8)));
    return parts;
  };
  Arena counting;
  for (const auto* part : take(counting)) EXPECT_EQ(part, nullptr);
  EXPECT_EQ(counting.bytes(), 64U + 128U + 0U + 64U);
  alignas(64) std::byte block[256];
  Arena handing(block);
  const auto parts = take(handing);
  EXPECT_EQ(handing.bytes(), counting.bytes());
  EXPECT_EQ(parts, (std::vector<std::byte*>{block, block + 64, block + 192, block + 192}));
}

TEST(Dispatch, ForceAndExclude) {
  const auto rows = kernels("pointwise", DeviceKind::cpu);
  ASSERT_GE(rows.size(), 2U);
  const PointwisePlan forced({}, {6}, Device::cpu(), {.force = rows.back()});
  EXPECT_EQ(forced.explain().kernel, rows.back());
  EXPECT_EQ(forced.explain().rows.front().reason, rows.back() + " is forced");
  const PointwisePlan excluded({}, {6}, Device::cpu(), {.exclude = {rows.front()}});
  EXPECT_NE(excluded.explain().kernel, rows.front());
  EXPECT_EQ(excluded.explain().rows.front().reason, "excluded by option");
  const PointwisePlan usual({}, {6});
  EXPECT_EQ(usual.explain().kernel, rows.front());
  EXPECT_EQ(usual.explain().rows.back().reason, "accepts, but " + rows.front() + " comes first");
  std::string list, reasons;
  for (const auto& row : rows) list += (list.empty() ? "" : ", ") + row, reasons += "\n  " + row + ": excluded by option";
  EXPECT_EQ(error_of([] { PointwisePlan({}, {6}, Device::cpu(), {.force = "cpu.nothing"}); }),
            "[pointwise.plan] force: expected one of " + list + ", got \"cpu.nothing\"");
  EXPECT_EQ(error_of([] { PointwisePlan({}, {6}, Device::cpu(), {.exclude = {"cpu.nothing"}}); }),
            "[pointwise.plan] exclude: expected one of " + list + ", got \"cpu.nothing\"");
  EXPECT_EQ(error_of([&] { PointwisePlan({}, {6}, Device::cpu(), {.exclude = rows}); }),
            "[pointwise.plan] expected a row that accepts, got none:" + reasons);
  EXPECT_EQ(error_of([] { PointwisePlan({}, {6}, Device::cpu(), {.threads = -1}); }),
            "[pointwise.plan] threads: expected 0 ... 4096, got -1");
}

TEST(Dispatch, EveryLayerListsItsRowsAndEndsWithTheReference) {
  for (const std::string layer : {"linear", "recurrent", "attention", "softmax", "embedding", "loss", "pointwise", "adam"}) {
    const auto rows = kernels(layer, DeviceKind::cpu);
    ASSERT_FALSE(rows.empty()) << layer;
    EXPECT_EQ(rows.back(), "reference." + layer);
    EXPECT_FALSE(kernels(layer, DeviceKind::cuda).empty());
  }
  EXPECT_EQ(
      error_of([] { kernels("convolution", DeviceKind::cpu); }),
      "[kernels] layer: expected linear, recurrent, attention, softmax, embedding, loss, pointwise or adam, got \"convolution\"");
}

TEST(Copy, StridedViewsOfAnyRank_sanitize) {
  HostTensor from(DType::i64, {3, 4, 5}), to(DType::i64, {5, 3, 4}, 7);
  from.integers(1, -100, 100);
  const auto moved = from.view().transposed(0, 2).transposed(1, 2);
  copy(to, moved);
  EXPECT_EQ(to.values(), test::gathered(moved));
  EXPECT_TRUE(to.guards_intact());
  HostTensor row(DType::f16, {6}), matrix(DType::f16, {4, 6});
  row.uniform(2, -1, 1);
  TensorView repeated = row;
  repeated.rank = 2, repeated.shape = {4, 6}, repeated.strides = {0, 1};
  copy(matrix, repeated);
  EXPECT_EQ(matrix.values(), test::gathered(repeated));
  HostTensor one(DType::u8, {}), other(DType::u8, {});
  one.put(0, 9);
  copy(other, one);
  EXPECT_EQ(other.at(0), 9);
  copy(HostTensor(DType::f32, {0, 3}), HostTensor(DType::f32, {0, 3}));
}

TEST(Copy, RefusesOtherTypesShapesAndOverlaps) {
  HostTensor a(DType::f32, {2, 3}), b(DType::f16, {2, 3}), c(DType::f32, {3, 2});
  EXPECT_EQ(error_of([&] { copy(a, b); }), "[copy] from: expected [2, 3] f32 cpu, got [2, 3] f16 cpu");
  EXPECT_EQ(error_of([&] { copy(a, c); }), "[copy] from: expected [2, 3] f32 cpu, got [3, 2] f32 cpu");
  EXPECT_EQ(error_of([&] { copy(a, {}); }), "[copy] expected two views, got [2, 3] f32 cpu and not given");
  EXPECT_EQ(error_of([&] { copy(a.view().narrow(0, 0, 1), a.view().narrow(0, 0, 1)); }),
            "[copy] to: expected memory apart from from, got an overlap");
}

TEST(Runtime, BuffersAreAlignedAndStreamsDone) {
  const Buffer buffer(100, Device::cpu());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0U);
  EXPECT_EQ(buffer.bytes(), 100U);
  const Stream stream;
  Event event;
  event.record(stream);
  event.wait(stream);
  event.synchronize();
  stream.synchronize();
  EXPECT_EQ(backends().front().name, "cpu");
  EXPECT_TRUE(backends().front().usable);
}

TEST(Runtime, TheCpuHasItsOwnStreamButNoGraphs) {
  const OwnedStream own(Device::cpu());
  EXPECT_EQ(own.stream().device, Device::cpu());
  const Buffer here = Buffer::on_host(100, Device::cpu());
  EXPECT_EQ(here.device(), Device::cpu());
  EXPECT_EQ(here.bytes(), 100U);
  ASSERT_NE(here.data(), nullptr);
  bool ran = false;
  EXPECT_EQ(error_of([&] { Graph::capture(own.stream(), [&] { ran = true; }); }),
            "[graph.capture] stream: expected one of a card, got one of cpu");
  EXPECT_FALSE(ran);
  EXPECT_FALSE(Graph().given());
  EXPECT_EQ(error_of([&] { Graph().launch(own.stream()); }), "[graph.launch] expected a captured graph, got none");
}

TEST(Isa, NamesComeBackAndAWishOnlyLowers) {
  for (const Isa isa : every_isa) EXPECT_EQ(parse_isa(name(isa)), isa);
  EXPECT_LE(chosen_isa(), best_isa());
  EXPECT_EQ(error_of([] { parse_isa("sse9"); }),
            "[EVERGLOW_ISA] expected portable, avx2, avx512, avx512_bf16 or amx (for example EVERGLOW_ISA=avx2), got \"sse9\"");
}

TEST(Parallel, RangesAndTasksCoverEachIndexOnce) {
  for (const int threads : {1, 2, 5})
    for (const std::int64_t n : {0, 1, 7, 100}) {
      std::vector<std::atomic<int>> ranges(static_cast<std::size_t>(n)), tasks(static_cast<std::size_t>(n));
      parallel_ranges(threads, n, 3, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++ranges[static_cast<std::size_t>(i)];
      });
      parallel_tasks(threads, n, [&](std::int64_t i) { ++tasks[static_cast<std::size_t>(i)]; });
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        EXPECT_EQ(ranges[i], 1);
        EXPECT_EQ(tasks[i], 1);
      }
    }
}

}  // namespace
}  // namespace everglow
