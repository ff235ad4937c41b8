// The linear rows of a card where the cases do not reach: sizes at which rows are staged, padding, views of any strides, tf32, and
// capture into a graph.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>

namespace everglow {
namespace {

using test::HostTensor;
class CudaLinear : public test::OnCard {};

/// A matrix in the card's memory of f16 whole numbers -2 ... 2, which every product adds exactly, with NaN between its rows.
struct Whole {
  std::vector<std::uint16_t> host;
  Buffer memory;
  TensorView view;

  Whole(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::uint64_t seed)
      : view(nullptr, DType::f16, {rows, columns}) {
    constexpr std::uint16_t numbers[] = {0xC000, 0xBC00, 0, 0x3C00, 0x4000}, nan = 0x7E00;
    host.assign(static_cast<std::size_t>(rows * stride), nan);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        host[static_cast<std::size_t>(r * stride + c)] = numbers[(seed >> 33) % 5];
      }
    memory = Buffer(host.size() * 2, Device::cuda(0));
    const TensorView all(memory.data(), DType::f16, {rows * stride}, Device::cuda(0));
    copy(all, TensorView(host.data(), DType::f16, {rows * stride}));
    view.data = memory.data(), view.device = Device::cuda(0), view.strides[0] = stride;
  }
  /// What lies on the card.
  const std::vector<std::uint16_t>& read() {
    const auto n = static_cast<std::int64_t>(host.size());
    copy(TensorView(host.data(), DType::f16, {n}), TensorView(memory.data(), DType::f16, {n}, Device::cuda(0)));
    return host;
  }
};

/// The elements of the matrices, without what lies between rows.
bool same(Whole& a, Whole& b) {
  a.read(), b.read();
  for (std::int64_t r = 0; r < a.view.size(0); ++r)
    if (std::memcmp(&a.host[static_cast<std::size_t>(r * a.view.strides[0])],
                    &b.host[static_cast<std::size_t>(r * b.view.strides[0])], static_cast<std::size_t>(a.view.size(1)) * 2) != 0)
      return false;
  return true;
}

/// The tensors of a layer, dense or on a stride, and what a row makes of them.
struct WholeLayer {
  static constexpr std::int64_t b = 2048, i = 1023, o = 4097;
  Whole x, w, bias, dy, y, z, dx, dw, db;

  WholeLayer(const LinearPlan& plan, bool outputs_first, bool padded)
      : x(b, i, stride(plan, i, padded), 1),
        w(outputs_first ? o : i, outputs_first ? i : o, stride(plan, outputs_first ? i : o, padded), 2),
        bias(1, o, o, 3),
        dy(b, o, stride(plan, o, padded), 4),
        y(b, o, stride(plan, o, padded), 5),
        z(b, o, stride(plan, o, padded), 6),
        dx(b, i, stride(plan, i, padded), 7),
        dw(w.view.size(0), w.view.size(1), w.view.stride(0), 8),
        db(1, o, o, 9) {}
  static std::int64_t stride(const LinearPlan& plan, std::int64_t columns, bool padded) {
    return padded ? plan.preferred_stride(columns) : columns;
  }
  static TensorView vector(const Whole& m) { return {m.view.data, DType::f16, {m.view.size(1)}, m.view.device}; }
  void run(const LinearPlan& plan, bool activates, const Buffer& scratch, const Stream& stream) {
    const TensorView preactivation = activates ? z.view : TensorView();
    plan.forward({.x = x.view, .weight = w.view, .bias = vector(bias), .y = y.view, .preactivation = preactivation}, scratch,
                 stream);
    plan.backward({.dy = dy.view,
                   .x = x.view,
                   .weight = w.view,
                   .preactivation = preactivation,
                   .dx = dx.view,
                   .dweight = dw.view,
                   .dbias = vector(db)},
                  scratch, stream);
  }
};

/// Everything odd, so that each product stages all of its tensors and is made in parts: what the library makes is what the plain
/// row does, bit for bit, from dense rows and from rows on the preferred stride with NaN between them.
TEST_F(CudaLinear, StagedAndPaddedRowsAreExact) {
  for (const LinearLayout layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const Activation activation : {Activation::none, Activation::relu})
      for (const bool padded : {false, true}) {
        const bool outputs_first = layout == LinearLayout::outputs_inputs, activates = activation != Activation::none;
        SCOPED_TRACE(testing::Message() << "padded " << padded << ", outputs first " << outputs_first << ", relu " << activates);
        const LinearDescription d{.inputs = WholeLayer::i,
                                  .outputs = WholeLayer::o,
                                  .dtype = DType::f16,
                                  .layout = layout,
                                  .activation = activation,
                                  .training = true};
        const LinearPlan library(d, {WholeLayer::b}, card, {.force = "cublaslt.linear"});
        const LinearPlan plain(d, {WholeLayer::b}, card, {.force = "cuda.linear"});
        const Buffer scratch(std::max(library.workspace_bytes(), plain.workspace_bytes()), card);
        WholeLayer came(library, outputs_first, padded), expected(library, outputs_first, false);
        came.run(library, activates, scratch, stream);
        expected.run(plain, activates, scratch, stream);
        EXPECT_TRUE(same(came.y, expected.y)) << "y";
        EXPECT_TRUE(!activates || same(came.z, expected.z)) << "preactivation";
        EXPECT_TRUE(same(came.dx, expected.dx)) << "dx";
        EXPECT_TRUE(same(came.dw, expected.dw)) << "dweight";
        EXPECT_TRUE(same(came.db, expected.db)) << "dbias";
      }
}

/// Views that no library takes (every second element, repeated rows) and such as it takes transposed.
TEST_F(CudaLinear, ViewsOfAnyStrides_sanitize) {
  constexpr std::int64_t b = 24, i = 16, o = 40;
  const LinearPlan plan({.inputs = i, .outputs = o}, {b}, card), cpu({.inputs = i, .outputs = o}, {b});
  HostTensor x(DType::f32, {i, b}), every_other(DType::f32, {b, 2 * i}), one_row(DType::f32, {1, i}), w(DType::f32, {o, i});
  x.integers(1, -3, 3), every_other.integers(2, -3, 3), one_row.integers(3, -3, 3), w.integers(4, -3, 3);
  ConstTensorView gaps = every_other.const_view().narrow(1, 0, i);
  gaps.strides[1] = 2;
  ConstTensorView repeated = one_row.const_view();
  repeated.shape[0] = b, repeated.strides[0] = 0;
  for (const ConstTensorView& input : {x.const_view().transposed(0, 1), gaps, repeated}) {
    HostTensor y(DType::f32, {b, o}), turned(DType::f32, {o, b}), expected(DType::f32, {b, o});
    const test::Scratch scratch(plan.workspace_bytes()), host(cpu.workspace_bytes());
    cpu.forward({.x = input, .weight = w, .y = expected}, {host.data(), host.bytes()});
    proof::forward_on(card, plan, LinearForward{.x = input, .weight = w, .y = y}, scratch);
    EXPECT_EQ("", test::compare(y.values(), expected.values(), 0));
    proof::forward_on(card, plan, LinearForward{.x = input, .weight = w, .y = turned.view().transposed(0, 1)}, scratch);
    EXPECT_EQ("", test::compare(test::gathered(turned.view().transposed(0, 1)), expected.values(), 0));
  }
}

/// Operands of tf32 have 11 significant bits: each of the two roundings is at most 2^-11 of a term.
TEST_F(CudaLinear, Tf32IsTakenWhereItIsAskedFor) {
  constexpr std::int64_t b = 128, i = 256, o = 128;
  HostTensor x(DType::f32, {b, i}), w(DType::f32, {o, i}), exact(DType::f32, {b, o}), y(DType::f32, {b, o});
  x.uniform(1, 0.5, 1), w.uniform(2, 0.5, 1);
  const LinearPlan ieee({.inputs = i, .outputs = o}, {b}, card), tf32({.inputs = i, .outputs = o}, {b}, card, {.math = Math::tf32});
  const test::Scratch scratch(ieee.workspace_bytes());
  proof::forward_on(card, ieee, LinearForward{.x = x, .weight = w, .y = exact}, scratch);
  proof::forward_on(card, tf32, LinearForward{.x = x, .weight = w, .y = y}, scratch);
  const std::vector<double> a = exact.values(), c = y.values();
  double largest = 0;
  for (std::size_t n = 0; n < a.size(); ++n) largest = std::max(largest, std::fabs(c[n] / a[n] - 1));
  EXPECT_LE(largest, 0x1p-10 + 0x1p-22 + i * 0x1p-23);
  EXPECT_GT(largest, i * 0x1p-24) << "no rounding to tf32 is to be seen";
}

TEST_F(CudaLinear, ExplainNamesTheAlgorithm) {
  const LinearPlan plan({.inputs = 1024, .outputs = 4096, .dtype = DType::f16, .training = true}, {4096}, card);
  for (const ExplanationGemm& gemm : plan.explain().gemms)
    EXPECT_NE(gemm.algorithm.find("cuBLASLt"), std::string::npos) << gemm.pass << ": " << gemm.algorithm;
}

/// A captured run gives at each replay what a plain one does.
TEST_F(CudaLinear, IsCapturedIntoAGraph) {
  constexpr std::int64_t b = 64, i = 96, o = 80;
  const LinearPlan plan({.inputs = i, .outputs = o, .dtype = DType::f16, .activation = Activation::silu, .training = true}, {b},
                        card);
  Whole x(b, i, i, 1), w(o, i, i, 2), y(b, o, o, 3), z(b, o, o, 4), again(b, o, o, 5);
  const Buffer scratch(plan.workspace_bytes(), card);
  cudaStream_t own = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&own));
  const Stream mine{card, own};
  plan.forward({.x = x.view, .weight = w.view, .y = again.view, .preactivation = z.view}, scratch, mine);
  mine.synchronize();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
  plan.forward({.x = x.view, .weight = w.view, .y = y.view, .preactivation = z.view}, scratch, mine);
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(own, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&ready, graph, 0));
  for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(cudaSuccess, cudaGraphLaunch(ready, own));
  mine.synchronize();
  EXPECT_TRUE(same(y, again));
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaStreamDestroy(own);
}

/// One plan, two streams at once, a workspace each, in which odd rows are staged: neither sees the other's.
TEST_F(CudaLinear, RunsOnTwoStreamsAtOnce) {
  const LinearDescription d{.inputs = WholeLayer::i, .outputs = WholeLayer::o, .dtype = DType::f16, .training = true};
  for (const char* row : {"cublaslt.linear", "cuda.linear"}) {
    SCOPED_TRACE(row);
    const LinearPlan plan(d, {WholeLayer::b}, card, {.force = row});
    WholeLayer expected(plan, true, false), first(plan, true, false), second(plan, true, false);
    const Buffer scratch[] = {Buffer(plan.workspace_bytes(), card), Buffer(plan.workspace_bytes(), card)};
    expected.run(plan, false, scratch[0], stream);
    stream.synchronize();
    cudaStream_t streams[2] = {nullptr, nullptr};
    for (cudaStream_t& own : streams) ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    for (int repeat = 0; repeat < 4; ++repeat) {
      first.run(plan, false, scratch[0], {card, streams[0]});
      second.run(plan, false, scratch[1], {card, streams[1]});
    }
    for (const cudaStream_t own : streams) Stream{card, own}.synchronize(), cudaStreamDestroy(own);
    for (WholeLayer* came : {&first, &second}) {
      EXPECT_TRUE(same(came->y, expected.y)) << "y";
      EXPECT_TRUE(same(came->dx, expected.dx)) << "dx";
      EXPECT_TRUE(same(came->dw, expected.dw)) << "dweight";
      EXPECT_TRUE(same(came->db, expected.db)) << "dbias";
    }
  }
}

}  // namespace
}  // namespace everglow
