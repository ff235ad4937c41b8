// The linear rows of a card where the cases do not reach: sizes at which rows are staged, padding, views of any strides, tf32, and
// capture into a graph.
#include "cases/proof/placement.hpp"
#include "cases/proof/proof.hpp"
#include "cuda/card.hpp"
#include "gemm/cublaslt.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace everglow {
namespace {

using test::HostTensor;
class CudaLinear : public test::OnCard {};

/// Whole numbers -2 ... 2 and NaN as bits.
struct Numbers {
  std::array<std::uint32_t, 5> whole;
  std::uint32_t nan;
};
Numbers numbers_of(DType dtype) {
  if (dtype == DType::f16) return {{0xC000, 0xBC00, 0, 0x3C00, 0x4000}, 0x7E00};
  if (dtype == DType::bf16) return {{0xC000, 0xBF80, 0, 0x3F80, 0x4000}, 0x7FC0};
  return {{0xC0000000, 0xBF800000, 0, 0x3F800000, 0x40000000}, 0x7FC00000};
}

/// A matrix in the card's memory of whole numbers -2 ... 2, which every product adds exactly, with NaN between its rows and before
/// its first element.
struct Whole {
  std::size_t size;
  std::int64_t first;  // elements before the first
  std::vector<std::uint8_t> host;
  Buffer memory;
  TensorView view;

  Whole(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::uint64_t seed, DType dtype = DType::f16,
        std::int64_t elements_before = 0)
      : size(size_of(dtype)), first(elements_before), view(nullptr, dtype, {rows, columns}) {
    const Numbers numbers = numbers_of(dtype);
    host.resize(static_cast<std::size_t>(first + rows * stride) * size);
    for (std::int64_t i = 0; i < first + rows * stride; ++i) std::memcpy(at(i - first), &numbers.nan, size);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        std::memcpy(at(r * stride + c), &numbers.whole[(seed >> 33) % 5], size);
      }
    memory = Buffer(host.size(), Device::cuda(0));
    copy(bytes(memory.data(), Device::cuda(0)), bytes(host.data(), Device::cpu()));
    view.data = static_cast<std::uint8_t*>(memory.data()) + static_cast<std::size_t>(first) * size;
    view.device = Device::cuda(0), view.strides[0] = stride;
  }
  TensorView bytes(void* data, const Device& device) const {
    return {data, DType::u8, {static_cast<std::int64_t>(host.size())}, device};
  }
  std::uint8_t* at(std::int64_t element) { return host.data() + static_cast<std::size_t>(first + element) * size; }
  std::uint8_t* row(std::int64_t r) { return at(r * view.strides[0]); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(view.size(1)) * size; }
  /// Fetches what lies on the card.
  void read() { copy(bytes(host.data(), Device::cpu()), bytes(memory.data(), Device::cuda(0))); }
  /// Whether NaN stands before and between rows still; after read().
  bool padding_stands() {
    const std::uint32_t nan = numbers_of(view.dtype).nan;
    for (std::int64_t i = 0; i < first; ++i)
      if (std::memcmp(at(i - first), &nan, size) != 0) return false;
    for (std::int64_t r = 0; r < view.size(0); ++r)
      for (std::int64_t c = view.size(1); c < view.strides[0]; ++c)
        if (std::memcmp(at(r * view.strides[0] + c), &nan, size) != 0) return false;
    return true;
  }
};

/// The elements of the matrices, of which nothing else was written.
bool same(Whole& a, Whole& b) {
  a.read(), b.read();
  for (std::int64_t r = 0; r < a.view.size(0); ++r)
    if (std::memcmp(a.row(r), b.row(r), a.row_bytes()) != 0) return false;
  return a.padding_stands() && b.padding_stands();
}

/// Where the tensors of a layer lie, and what is asked of it.
struct Odd {
  std::int64_t batch = 1024, inputs = 1023, outputs = 4097;
  DType dtype = DType::f16;
  LinearLayout layout = LinearLayout::outputs_inputs;
  Activation activation = Activation::none;
  bool padded = false;           // rows on the preferred stride
  DType gradients = DType::f16;  // of dweight and dbias
  bool accumulate = false;
  std::int64_t first = 0;  // elements before each tensor
  bool turned = false;     // x and the weights are transposed views
  bool activates() const { return activation != Activation::none; }
  LinearDescription description() const {
    return {.inputs = inputs, .outputs = outputs, .dtype = dtype, .layout = layout, .activation = activation, .training = true};
  }
};

/// The tensors of a layer, dense or on a stride, and what a row makes of them.
struct WholeLayer {
  const LinearPlan& plan;
  const Odd odd;
  Whole x, w, bias, dy, y, z, dx, dw, db;

  WholeLayer(const LinearPlan& of, const Odd& o)
      : plan(of),
        odd(o),
        x(o.turned ? matrix(o.inputs, o.batch, 1) : matrix(o.batch, o.inputs, 1)),
        w(weight(o.dtype, 2, o.turned)),
        bias(1, o.outputs, o.outputs, 3, o.dtype, o.first),
        dy(matrix(o.batch, o.outputs, 4)),
        y(matrix(o.batch, o.outputs, 5)),
        z(matrix(o.batch, o.outputs, 6)),
        dx(matrix(o.batch, o.inputs, 7)),
        dw(weight(o.gradients, 8)),
        db(1, o.outputs, o.outputs, 9, o.gradients, o.first) {}
  Whole matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) const {
    return {rows, columns, odd.padded ? plan.preferred_stride(columns) : columns, seed, odd.dtype, odd.first};
  }
  Whole weight(DType dtype, std::uint64_t seed, bool turned = false) const {
    const bool outputs_first = (odd.layout == LinearLayout::outputs_inputs) != turned;
    const std::int64_t columns = outputs_first ? odd.inputs : odd.outputs;
    return {outputs_first ? odd.outputs : odd.inputs,
            columns,
            odd.padded ? plan.preferred_stride(columns) : columns,
            seed,
            dtype,
            odd.first};
  }
  ConstTensorView read(const Whole& m) const {
    return odd.turned ? ConstTensorView(m.view).transposed(0, 1) : ConstTensorView(m.view);
  }
  static TensorView vector(const Whole& m) { return {m.view.data, m.view.dtype, {m.view.size(1)}, m.view.device}; }
  /// Both gradients in one call, and then dweight alone once more where it accumulates.
  void run(const Buffer& scratch, const Stream& stream) const {
    const TensorView preactivation = odd.activates() ? z.view : TensorView();
    plan.forward({.x = read(x), .weight = read(w), .bias = vector(bias), .y = y.view, .preactivation = preactivation}, scratch,
                 stream);
    LinearBackward t{.dy = dy.view,
                     .x = read(x),
                     .weight = read(w),
                     .preactivation = preactivation,
                     .dx = dx.view,
                     .dweight = dw.view,
                     .dbias = vector(db),
                     .accumulate = odd.accumulate};
    plan.backward(t, scratch, stream);
    if (!odd.accumulate) return;
    t.dx = {};
    plan.backward(t, scratch, stream);
  }
};

/// What the library makes, with copies and rests, is what the plain row does, bit for bit.
void expect_exact(const Odd& odd, const Stream& stream) {
  SCOPED_TRACE(testing::Message() << odd.inputs << " x " << odd.outputs << ' ' << name(odd.dtype) << ", padded " << odd.padded
                                  << ", layout " << static_cast<int>(odd.layout) << ", activation " << odd.activates()
                                  << ", gradients " << name(odd.gradients) << ", accumulate " << odd.accumulate << ", first "
                                  << odd.first << ", turned " << odd.turned);
  const Math math = odd.dtype == DType::f32 ? Math::tf32 : Math::ieee;
  const LinearPlan library(odd.description(), {odd.batch}, Device::cuda(0), {.force = "cublaslt.linear", .math = math});
  const LinearPlan plain(odd.description(), {odd.batch}, Device::cuda(0), {.force = "cuda.linear", .math = math});
  const Buffer scratch(std::max(library.workspace_bytes(), plain.workspace_bytes()), Device::cuda(0));
  const TensorView poison(scratch.data(), DType::f32, {static_cast<std::int64_t>(scratch.bytes() / 4)}, Device::cuda(0));
  const PointwisePlan fill({.operation = Pointwise::fill, .dtype = DType::f32, .factor = std::nanf("")}, {poison.size(0)},
                           Device::cuda(0));
  fill.run({.y = poison}, {}, stream);
  WholeLayer came(library, odd);
  Odd dense = odd;
  dense.padded = false, dense.first = 0;
  WholeLayer expected(plain, dense);
  came.run(scratch, stream), expected.run(scratch, stream);
  stream.synchronize();
  EXPECT_TRUE(same(came.y, expected.y)) << "y";
  EXPECT_TRUE(!odd.activates() || same(came.z, expected.z)) << "preactivation";
  EXPECT_TRUE(same(came.dx, expected.dx)) << "dx";
  EXPECT_TRUE(same(came.dw, expected.dw)) << "dweight";
  EXPECT_TRUE(same(came.db, expected.db)) << "dbias";
}

/// Everything odd, so that each product stages what it must and leaves a rest where that is faster: from dense rows and from rows
/// on the preferred stride, with NaN between them and in the workspace.
TEST_F(CudaLinear, OddSizesAreExact) {
  for (const LinearLayout layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const Activation activation : {Activation::none, Activation::relu})
      for (const bool padded : {false, true}) expect_exact({.layout = layout, .activation = activation, .padded = padded}, stream);
}

/// One size odd at a time, by one element or by half of 16 bytes, in every type.
TEST_F(CudaLinear, OneOddSizeIsExact) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
    for (const auto& [inputs, outputs] :
         {std::pair<std::int64_t, std::int64_t>{1024, 4097}, {1024, 4100}, {1021, 4096}, {1023, 4098}})
      for (const LinearLayout layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
        for (const bool padded : {false, true})
          expect_exact({.batch = 384,
                        .inputs = inputs,
                        .outputs = outputs,
                        .dtype = dtype,
                        .layout = layout,
                        .padded = padded,
                        .gradients = dtype},
                       stream);
}

/// Weight gradients in f32 and such as are added to, and tensors that begin off 16 bytes.
TEST_F(CudaLinear, OddGradientsAccumulateAndTensorsMayBeginAnywhere) {
  for (const bool padded : {false, true})
    for (const LinearLayout layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs}) {
      expect_exact({.layout = layout, .padded = padded, .gradients = DType::f32}, stream);
      expect_exact({.layout = layout, .padded = padded, .gradients = DType::f32, .accumulate = true}, stream);
      expect_exact({.layout = layout, .activation = Activation::relu, .padded = padded, .first = 1}, stream);
      expect_exact({.outputs = 4104, .layout = layout, .padded = padded, .first = 3}, stream);
    }
}

/// Odd views that lie the other way round have no room to be copied to.
TEST_F(CudaLinear, OddTransposedViewsAreExact_sanitize) {
  for (const LinearLayout layout : {LinearLayout::outputs_inputs, LinearLayout::inputs_outputs})
    for (const std::int64_t batch : {256, 255}) {
      expect_exact({.batch = batch, .outputs = 519, .layout = layout, .turned = true}, stream);
      expect_exact({.batch = batch, .inputs = 519, .outputs = 1021, .layout = layout, .padded = true, .turned = true}, stream);
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

/// Choices that were measured are taken, by plans of this process and by those of one that finds the file, and the results agree.
TEST_F(CudaLinear, TuneMeasuresAndALaterProcessFindsIt) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / ("everglow_tuned_" + std::to_string(getpid()));
  std::filesystem::remove(file);
  ASSERT_EQ(0, setenv("EVERGLOW_TUNED", file.c_str(), 1));
  cublaslt::forget_choices();
  const Odd odd{.batch = 512, .inputs = 264, .outputs = 520};
  const auto plan_of = [&](const char* row) { return LinearPlan(odd.description(), {odd.batch}, card, {.force = row}); };
  const auto measured = [&] {
    int count = 0;
    const LinearPlan plan = plan_of("cublaslt.linear");
    for (const ExplanationGemm& gemm : plan.explain().gemms) count += gemm.algorithm.find("measured") != std::string::npos ? 1 : 0;
    return count;
  };
  const LinearPlan plan = plan_of("cublaslt.linear");
  const Buffer scratch(plan.workspace_bytes(), card);
  WholeLayer heuristic(plan, odd), came(plan, odd), later(plan, odd);
  heuristic.run(scratch, stream);
  EXPECT_EQ(measured(), 0);
  const LinearForward forward{
      .x = came.x.view, .weight = came.w.view, .bias = WholeLayer::vector(came.bias), .y = came.y.view, .preactivation = {}};
  EXPECT_EQ(plan.tune(forward, scratch, stream), 1);
  EXPECT_EQ(plan.tune(forward, scratch, stream), 0) << "what was measured is not measured again";
  const LinearBackward backward{.dy = came.dy.view,
                                .x = came.x.view,
                                .weight = came.w.view,
                                .preactivation = {},
                                .dx = came.dx.view,
                                .dweight = came.dw.view,
                                .dbias = WholeLayer::vector(came.db)};
  EXPECT_EQ(plan.tune(backward, scratch, stream), 2);
  EXPECT_EQ(tuned::read(file).size(), 3U);
  EXPECT_EQ(measured(), 3);
  cublaslt::forget_choices();  // as a new process
  EXPECT_EQ(measured(), 3);
  later.run(scratch, stream);
  for (WholeLayer* one : {&came, &later}) {
    EXPECT_TRUE(same(one->y, heuristic.y)) << "y";
    EXPECT_TRUE(same(one->dx, heuristic.dx)) << "dx";
    EXPECT_TRUE(same(one->dw, heuristic.dw)) << "dweight";
    EXPECT_TRUE(same(one->db, heuristic.db)) << "dbias";
  }
  std::ofstream(file) << "damaged";
  cublaslt::forget_choices();
  EXPECT_EQ(measured(), 0);
  std::filesystem::remove(file);
  unsetenv("EVERGLOW_TUNED");
  cublaslt::forget_choices();
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
  const Odd odd;
  for (const char* row : {"cublaslt.linear", "cuda.linear"}) {
    SCOPED_TRACE(row);
    const LinearPlan plan(odd.description(), {odd.batch}, card, {.force = row});
    WholeLayer expected(plan, odd), first(plan, odd), second(plan, odd);
    const Buffer scratch[] = {Buffer(plan.workspace_bytes(), card), Buffer(plan.workspace_bytes(), card)};
    expected.run(scratch[0], stream);
    stream.synchronize();
    cudaStream_t streams[2] = {nullptr, nullptr};
    for (cudaStream_t& own : streams) ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    for (int repeat = 0; repeat < 4; ++repeat) {
      first.run(scratch[0], {card, streams[0]});
      second.run(scratch[1], {card, streams[1]});
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
