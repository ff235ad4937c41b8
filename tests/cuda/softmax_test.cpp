// Softmax of a card where the cases do not reach: lengths around each way to make a row, in place, and dense rows.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace everglow {
namespace {

using test::HostTensor;
class CudaSoftmax : public test::OnCard {};

/// By the proof of a case: a warp, a block, clusters of 2 to 16 blocks, and two launches. One row is dense, two have gaps.
TEST_F(CudaSoftmax, AnyLength) {
  for (const char* dtype : {"f32", "f16", "bf16"})
    for (const std::int64_t columns : {1023, 1024, 1025, 8192, 8193, 16400, 40001, 65536, 131073, 262144, 524288, 929000, 1000003})
      for (const int rows : {1, 2}) {
        const std::string line = "softmax rows=" + std::to_string(rows) + " columns=" + std::to_string(columns) +
                                 " dtype=" + dtype + (columns % 2 == 0 ? " masked_row=zero" : " log=1");
        SCOPED_TRACE(line);
        const auto proof = proof::make_proof(cases::parse(line));
        proof->device = DeviceDescription(card);
        for (const auto& finding : proof->run({})) EXPECT_EQ("", finding.fault) << finding.direction << ' ' << finding.tensor;
      }
}

/// Dense rows beside each other are what each of them is alone, and y may be x, dx may be dy.
TEST_F(CudaSoftmax, RowsDoNotDependOnEachOtherOrOnThePlace_sanitize) {
  for (const std::int64_t columns : {40, 72, 1032, 4096}) {
    constexpr std::int64_t rows = 37;
    SCOPED_TRACE(columns);
    const SoftmaxPlan plan({.dtype = DType::f16}, {rows, columns}, card);
    const test::Scratch scratch(plan.workspace_bytes());
    HostTensor x(DType::f16, {rows, columns}), y(DType::f16, {rows, columns}), alone(DType::f16, {rows, columns});
    HostTensor in_place(DType::f16, {rows, columns}), dy(DType::f16, {rows, columns}), dx(DType::f16, {rows, columns});
    x.uniform(1, -4, 4), dy.uniform(2, -1, 1);
    in_place.set(x.values());
    proof::forward_on(card, plan, SoftmaxForward{x, y}, scratch);
    proof::forward_on(card, plan, SoftmaxForward{in_place, in_place}, scratch);
    for (std::int64_t r = 0; r < rows; ++r)
      proof::forward_on(card, plan, SoftmaxForward{x.const_view().narrow(0, r, 1), alone.view().narrow(0, r, 1)}, scratch);
    EXPECT_EQ(y.values(), alone.values());
    EXPECT_EQ(y.values(), in_place.values());
    proof::backward_on(card, plan, SoftmaxBackward{y, dy, dx}, scratch);
    proof::backward_on(card, plan, SoftmaxBackward{y, dy, dy}, scratch);
    EXPECT_EQ(dx.values(), dy.values());
  }
}

/// Three rows over and over, so many that a block or a cluster makes one after the other, the next one under way meanwhile: each
/// time they give the same bits, and so for two host threads at once with other lengths.
TEST_F(CudaSoftmax, OneRowAfterTheOther) {
  const auto many = [this](std::int64_t columns, std::int64_t rows) {
    const std::size_t row_bytes = static_cast<std::size_t>(columns) * sizeof(float),
                      all = static_cast<std::size_t>(rows) * row_bytes;
    const SoftmaxPlan plan({}, {rows, columns}, card);
    const Buffer x(all, card), y(all, card), dx(all, card), scratch(plan.workspace_bytes(), card);
    HostTensor three(DType::f32, {3, columns});
    three.uniform(static_cast<std::uint64_t>(columns), -4, 4);
    const auto row_of = [&](const Buffer& buffer, std::int64_t row, std::int64_t count) {
      return TensorView(static_cast<std::byte*>(buffer.data()) + static_cast<std::size_t>(row) * row_bytes, DType::f32,
                        {count, columns}, card);
    };
    const auto tensor = [&](const Buffer& buffer) { return row_of(buffer, 0, rows); };
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    const Stream mine{card, own};
    for (std::int64_t r = 0; r < rows; r += 3)
      copy(row_of(x, r, std::min<std::int64_t>(3, rows - r)), three.const_view().narrow(0, 0, std::min<std::int64_t>(3, rows - r)),
           mine);
    plan.forward({.x = tensor(x), .y = tensor(y)}, scratch, mine);
    plan.backward({.y = tensor(y), .dy = tensor(x), .dx = tensor(dx)}, scratch, mine);
    mine.synchronize();
    std::vector<char> results(all);
    for (const Buffer* buffer : {&y, &dx}) {
      ASSERT_EQ(cudaSuccess, cudaMemcpy(results.data(), buffer->data(), all, cudaMemcpyDeviceToHost));
      std::int64_t other = 0;
      for (std::int64_t r = 3; r < rows; ++r)
        other += std::memcmp(&results[static_cast<std::size_t>(r) * row_bytes],
                             &results[static_cast<std::size_t>(r % 3) * row_bytes], row_bytes) != 0;
      EXPECT_EQ(other, 0) << columns << " columns";
    }
    cudaStreamDestroy(own);
  };
  std::thread beside(many, 131072, 320);
  many(32768, 1200);
  beside.join();
  many(700000, 72);
}

/// A NaN or +inf makes its row NaN, a row of nothing but -inf is what masked_row says, and the rows beside stay.
TEST_F(CudaSoftmax, SpecialValuesStayInTheirRows_sanitize) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::int64_t columns : {3, 33, 2000, 20000}) {
    SCOPED_TRACE(columns);
    HostTensor x(DType::f32, {5, columns}), y(DType::f32, {5, columns});
    x.fill(-infinity);
    for (std::int64_t c = 0; c < columns; ++c) x.put(c, 1), x.put(4 * columns + c, 2);
    x.put(columns + columns / 2, nan), x.put(2 * columns, infinity);
    for (const MaskedRow masked : {MaskedRow::nan, MaskedRow::zero}) {
      const SoftmaxPlan plan({.masked_row = masked}, {5, columns}, card);
      const test::Scratch scratch(plan.workspace_bytes());
      y.poison();
      proof::forward_on(card, plan, SoftmaxForward{x, y}, scratch);
      for (const std::int64_t row : {0, 4}) EXPECT_NEAR(y.at(row * columns), 1.0 / static_cast<double>(columns), 1e-6);
      for (const std::int64_t row : {1, 2})
        EXPECT_TRUE(std::isnan(y.at(row * columns)) && std::isnan(y.at((row + 1) * columns - 1)));
      const double empty = y.at(4 * columns - 1);
      EXPECT_TRUE(masked == MaskedRow::zero ? empty == 0 : std::isnan(empty)) << empty;
    }
  }
}

/// One plan, two streams at once, a workspace each: rows of a block, of a cluster, and of two launches that meet in the workspace.
TEST_F(CudaSoftmax, RunsOnTwoStreamsAtOnce) {
  constexpr std::int64_t rows = 8;
  for (const std::int64_t columns : {4096, 100000, 1000003}) {
    SCOPED_TRACE(columns);
    const SoftmaxPlan plan({}, {rows, columns}, card);
    HostTensor x[2] = {HostTensor(DType::f32, {rows, columns}), HostTensor(DType::f32, {rows, columns})};
    HostTensor y[2] = {HostTensor(DType::f32, {rows, columns}), HostTensor(DType::f32, {rows, columns})};
    HostTensor expected(DType::f32, {rows, columns});
    proof::Placement places[] = {proof::Placement(card), proof::Placement(card)};
    cudaStream_t streams[2] = {nullptr, nullptr};
    SoftmaxForward forwards[2];
    const Buffer scratch[] = {Buffer(plan.workspace_bytes(), card), Buffer(plan.workspace_bytes(), card)};
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
      x[i].uniform(i + 1, -4, 4);
      forwards[i] = proof::placed(places[i], SoftmaxForward{x[i], y[i]});
    }
    stream.synchronize();
    for (int repeat = 0; repeat < 4; ++repeat)
      for (std::size_t i = 0; i < 2; ++i) plan.forward(forwards[i], scratch[i], {card, streams[i]});
    for (std::size_t i = 0; i < 2; ++i) {
      Stream{card, streams[i]}.synchronize();
      places[i].finish();
      cudaStreamDestroy(streams[i]);
      const std::vector<double> came = y[i].values();
      proof::forward_on(card, plan, SoftmaxForward{x[i], expected}, test::Scratch(plan.workspace_bytes()));
      EXPECT_EQ("", test::compare(expected.values(), came, 0));
    }
  }
}

}  // namespace
}  // namespace everglow
