// What users of other libraries reported of their recurrent layers, as tests of ours: every cell, every row, every storage type.
#include "cases/proof/recurrent_problem.hpp"
#include "support/sparse.hpp"
#include "support/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace everglow {
namespace {

using proof::HostWeights;
using proof::RecurrentProblem;
using proof::RecurrentResult;
using test::HostTensor;

/// Calls f(problem, options) for every cell in every storage type, on every row that serves it.
void for_all(const std::string& sizes, const std::function<void(RecurrentProblem, const PlanOptions&)>& f) {
  for (const std::string cell : {"lstm", "lstm projection=3", "gru", "gru_reset_before", "tanh", "relu"})
    for (const std::string dtype : {"f32", "f16", "bf16"}) {
      for (const auto& row : kernels("recurrent", DeviceKind::cpu)) {
        const RecurrentProblem p(cases::parse("recurrent " + sizes + " cell=" + cell + " dtype=" + dtype));
        if (!proof::accepts(row, p)) continue;
        SCOPED_TRACE(cell + ' ' + dtype + ' ' + row);
        f(p, {.threads = 2, .force = row, .deterministic = true});
      }
    }
}

void expect_equal(const HostTensor& a, const HostTensor& b, const std::string& name) { EXPECT_EQ(a.values(), b.values()) << name; }
void expect_zero(const HostTensor& tensor, const std::string& name) {
  for (const double value : tensor.values()) ASSERT_EQ(value, 0) << name;
}
void expect_same(const RecurrentResult& a, const RecurrentResult& b) {
  const auto left = a.outputs(), right = b.outputs();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) expect_equal(left[i].second, right[i].second, left[i].first);
}
void expect_no_weight_gradients(const RecurrentResult& r) {
  for (const auto& [name, tensor] : r.outputs())
    if (name.find('.') != std::string::npos) expect_zero(tensor, name);
}
/// hn and cn are h0 and c0, and the gradients go back as they came.
void expect_states_pass(const RecurrentProblem& p, const RecurrentResult& r) {
  expect_equal(r.hn, p.h0, "hn"), expect_equal(r.dh0, p.dhn, "dh0");
  if (p.description.cell == Cell::lstm) expect_equal(r.cn, p.c0, "cn"), expect_equal(r.dc0, p.dcn, "dc0");
}

/// pytorch#50192, pytorch#60269: a sequence of no steps is an error.
TEST(RecurrentReports, NoSteps_sanitize) {
  for_all("steps=0 batch=3 inputs=4 hidden=6 bidirectional=1", [](const RecurrentProblem& p, const PlanOptions& options) {
    const RecurrentResult r = proof::run_recurrent(p, options);
    expect_states_pass(p, r);
    expect_no_weight_gradients(r);
    EXPECT_TRUE(r.guards);
  });
}

/// pytorch#4582, tensorflow#36139, tensorflow#43103: rows of length 0, or of padding alone.
TEST(RecurrentReports, RowsOfLengthZero_sanitize) {
  for_all("steps=3 batch=4 inputs=4 hidden=6 bidirectional=1 lengths=zero",
          [](const RecurrentProblem& p, const PlanOptions& options) {
            const RecurrentResult r = proof::run_recurrent(p, options);
            expect_states_pass(p, r);
            expect_zero(r.y, "y"), expect_zero(r.dx, "dx");
            expect_no_weight_gradients(r);
          });
}

TEST(RecurrentReports, NoRows_sanitize) {
  for_all("steps=3 batch=0 inputs=4 hidden=6 bidirectional=1", [](const RecurrentProblem& p, const PlanOptions& options) {
    expect_no_weight_gradients(proof::run_recurrent(p, options));
  });
}

/// pytorch#54307: backward of the last step alone, with a hidden size that is no multiple of 4. The gradient of y as one step of a
/// longer tensor is that of a dense one with zeros before it.
TEST(RecurrentReports, GradientOfTheLastStepAlone_sanitize) {
  for_all("steps=5 batch=3 inputs=4 hidden=7 dense=1", [](RecurrentProblem p, const PlanOptions& options) {
    const std::int64_t before = 4 * p.sizes.batch * p.width();
    for (std::int64_t i = 0; i < before; ++i) p.dy.put(i, 0);
    p.dhn.fill(0);
    const RecurrentResult whole = proof::run_recurrent(p, options);
    RecurrentProblem last = p;
    last.dy = HostTensor(p.description.dtype, {5, p.sizes.batch, p.width()});
    last.dy.fill(0);
    if (p.description.projection == 0 &&
        p.description.cell != Cell::lstm) {  // there hn is y, so its gradient is dy of the last step
      last.dhn = HostTensor(p.description.dtype, {1, p.sizes.batch, p.outputs()});
      for (std::int64_t i = 0; i < p.sizes.batch * p.width(); ++i) last.dhn.put(i, p.dy.at(before + i));
      expect_same(whole, proof::run_recurrent(last, options));
    }
    double sum = 0;
    for (const double value : whole.dx.values()) sum += std::abs(value);
    EXPECT_TRUE(sum > 0 && std::isfinite(sum));
  });
}

/// tensorflow#39453: 6464 rows; pytorch#2267: 6000 steps in both directions. The first and the last rows and steps are right.
TEST(RecurrentReports, ManyRowsAndManySteps) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const PlanOptions options{.threads = 2, .force = "cpu.recurrent_stepwise", .deterministic = true};
    const RecurrentProblem wide(cases::parse("recurrent steps=2 batch=6464 inputs=2 hidden=5 training=0 dense=1 dtype=" + dtype));
    RecurrentProblem one(cases::parse("recurrent steps=2 batch=1 inputs=2 hidden=5 training=0 dense=1 states=0 dtype=" + dtype));
    RecurrentProblem stateless = wide;
    stateless.h0 = stateless.c0 = {}, one.weights = wide.weights;
    const RecurrentResult all = proof::run_recurrent(stateless, options);
    for (const std::int64_t row : {0, 4096, 6463}) {
      for (std::int64_t i = 0; i < 4; ++i) one.x.put(i, wide.x.at((i / 2 * 6464 + row) * 2 + i % 2));
      const RecurrentResult alone = proof::run_recurrent(one, options);
      for (std::int64_t i = 0; i < 10; ++i) ASSERT_EQ(alone.y.at(i), all.y.at((i / 5 * 6464 + row) * 5 + i % 5)) << row;
    }
    const RecurrentProblem deep(cases::parse("recurrent steps=6000 batch=2 inputs=2 hidden=3 bidirectional=1 dtype=" + dtype));
    const RecurrentResult r = proof::run_recurrent(deep, options);
    for (std::int64_t j = 0; j < 2 * 3; ++j) {  // each direction ends where the other begins
      EXPECT_EQ(r.hn.at(j), r.y.at(5999 * 2 * 6 + j / 3 * 6 + j % 3));
      EXPECT_EQ(r.hn.at(6 + j), r.y.at(j / 3 * 6 + 3 + j % 3));
    }
    for (const auto& [name, tensor] : r.outputs())
      for (const double value : tensor.values()) ASSERT_TRUE(std::isfinite(value)) << name;
  }
}

/// The elements of a tensor [layers·directions, B, n] in memory that a batch-first caller has, [B, layers·directions, n].
HostTensor batch_first(const HostTensor& tensor) {
  const ConstTensorView view = tensor.const_view();
  HostTensor out(view.dtype, {view.size(1), view.size(0), view.size(2)}, view.size(2) + 3);
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    const std::int64_t column = i % view.size(2), b = i / view.size(2) % view.size(1), part = i / view.size(2) / view.size(1);
    out.put((b * view.size(0) + part) * view.size(2) + column, tensor.at(i));
  }
  return out;
}

/// pytorch#345, allennlp#1486, darts#730, fastai2#141, habitat-lab#901: states that are not contiguous.
TEST(RecurrentReports, StatesOfAnyStride_sanitize) {
  for_all("steps=3 batch=4 inputs=4 hidden=6 bidirectional=1 layers=2", [](const RecurrentProblem& p, const PlanOptions& options) {
    const RecurrentResult expected = proof::run_recurrent(p, options);
    const bool cells = p.description.cell == Cell::lstm;
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    RecurrentResult r = proof::blank_result(p, plan);
    const auto weights = p.weight_views();
    const auto gradients = proof::gradient_views(r);
    const HostTensor h0 = batch_first(p.h0), dhn = batch_first(p.dhn), hn = batch_first(r.hn), dh0 = batch_first(r.dh0);
    HostTensor c0, dcn, cn, dc0;
    if (cells) c0 = batch_first(p.c0), dcn = batch_first(p.dcn), cn = batch_first(r.cn), dc0 = batch_first(r.dc0);
    const auto turned = [](const auto& view) { return view.given() ? view.transposed(0, 1) : view; };
    RecurrentForward forward = proof::forward_tensors(p, r, weights);
    forward.h0 = turned(h0.const_view()), forward.c0 = turned(c0.const_view());
    forward.hn = turned(hn.view()), forward.cn = turned(cn.view());
    plan.forward(forward, {r.workspace.data(), r.workspace.bytes()});
    RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
    backward.h0 = forward.h0, backward.c0 = forward.c0;
    backward.dhn = turned(dhn.const_view()), backward.dcn = turned(dcn.const_view());
    backward.dh0 = turned(dh0.view()), backward.dc0 = turned(dc0.view());
    plan.backward(backward, {r.workspace.data(), r.workspace.bytes()});
    expect_equal(r.y, expected.y, "y"), expect_equal(r.dx, expected.dx, "dx");
    expect_equal(hn, batch_first(expected.hn), "hn"), expect_equal(dh0, batch_first(expected.dh0), "dh0");
    if (cells) expect_equal(cn, batch_first(expected.cn), "cn"), expect_equal(dc0, batch_first(expected.dc0), "dc0");
    EXPECT_TRUE(hn.guards_intact() && dh0.guards_intact());
  });
}

/// One row for the whole batch, and steps that stand in memory from the last to the first.
TEST(RecurrentReports, SequencesOfAnyStride_sanitize) {
  const auto backwards = [](TensorView view) {
    const std::int64_t bytes = view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype));
    view.data = static_cast<std::byte*>(view.data) + (view.shape[0] - 1) * bytes;
    view.strides[0] = -view.strides[0];
    return view;
  };
  for_all("steps=4 batch=3 inputs=5 hidden=6", [&](const RecurrentProblem& p, const PlanOptions& options) {
    HostTensor x = p.x;
    for (std::int64_t i = 0; i < 4 * 3 * 5; ++i) x.put(i, x.at(i / 15 * 15 + i % 5));
    const RecurrentResult expected = proof::run_recurrent(p, options);
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    RecurrentResult r = proof::blank_result(p, plan);
    const auto weights = p.weight_views();
    const auto gradients = proof::gradient_views(r);
    RecurrentForward forward = proof::forward_tensors(p, r, weights);
    forward.x.strides[1] = 0, forward.y = backwards(r.y);
    plan.forward(forward, {r.workspace.data(), r.workspace.bytes()});
    RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
    backward.x = forward.x, backward.y = forward.y, backward.dx = backwards(r.dx);
    plan.backward(backward, {r.workspace.data(), r.workspace.bytes()});
    for (std::int64_t i = 0; i < 4 * 3 * p.width(); ++i) {
      const std::int64_t row = 3 * p.width();
      ASSERT_EQ(r.y.at((3 - i / row) * row + i % row), expected.y.at(i));
    }
    for (std::int64_t i = 0; i < 4 * 15; ++i) ASSERT_EQ(r.dx.at((3 - i / 15) * 15 + i % 15), expected.dx.at(i));
    expect_equal(r.hn, expected.hn, "hn"), expect_equal(r.dweights[0].w_ih, expected.dweights[0].w_ih, "w_ih");
    expect_equal(r.dweights[0].w_hh, expected.dweights[0].w_hh, "w_hh");
  });
}

/// pytorch#65688, pytorch#86457, pytorch#2343, pytorch#39311: plain weights are read at each run; mxnet#16037: packed ones are
/// those that were packed, until they are packed again.
TEST(RecurrentReports, ChangedWeights_sanitize) {
  for_all("steps=3 batch=2 inputs=4 hidden=6 training=0", [](RecurrentProblem p, const PlanOptions& options) {
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    RecurrentResult r = proof::blank_result(p, plan);
    test::Scratch bytes(plan.packed_bytes());
    PackedWeights packed{TensorView(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.bytes())}), 0};
    const auto weights = p.weight_views();
    const auto y = [&](const PackedWeights* with) {
      RecurrentForward forward = proof::forward_tensors(p, r, weights);
      forward.packed = with;
      plan.forward(forward, {r.workspace.data(), r.workspace.bytes()});
      return r.y.values();
    };
    plan.pack(weights, packed);
    const auto first = y(nullptr);
    EXPECT_EQ(y(&packed), first);
    for (std::int64_t i = 0; i < p.weights[0].w_hh.const_view().elements(); ++i) p.weights[0].w_hh.put(i, 0.25);
    const auto second = y(nullptr);
    EXPECT_NE(second, first);
    EXPECT_EQ(y(&packed), first);
    plan.pack(weights, packed);
    EXPECT_EQ(y(&packed), second);
  });
}

/// pytorch#776, pytorch#777: backward can run again and gives the same; pytorch#5878, pytorch#15788: a run that can be
/// differentiated computes what one that cannot does; pytorch#35661, pytorch#18110, pytorch#104697: dropout repeats under a seed.
TEST(RecurrentReports, RunsRepeat_sanitize) {
  for_all("steps=4 batch=3 inputs=4 hidden=6 layers=2 dropout=0.5", [](const RecurrentProblem& p, const PlanOptions& options) {
    const RecurrentResult r = proof::run_recurrent(p, options), expected = proof::run_recurrent(p, options);
    expect_same(r, expected);
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    const auto weights = p.weight_views();
    const auto gradients = proof::gradient_views(r);
    plan.backward(proof::backward_tensors(p, r, weights, gradients), {r.workspace.data(), r.workspace.bytes()});
    expect_same(r, expected);
    RecurrentProblem inference = p;
    inference.description.training = false;
    const RecurrentResult other = proof::run_recurrent(inference, options);
    expect_equal(other.y, r.y, "y"), expect_equal(other.hn, r.hn, "hn");
  });
}

/// onnxruntime#1400: padding matters. NaN, infinity, the largest number and zero all give the same bits.
TEST(RecurrentReports, PaddingIsNeverSeen_sanitize) {
  for_all("steps=5 batch=6 inputs=4 hidden=6 bidirectional=1 lengths=random", [](RecurrentProblem p, const PlanOptions& options) {
    const RecurrentResult expected = proof::run_recurrent(p, options);
    for (const double padding : {0.0, std::numeric_limits<double>::infinity(), 6e4})
      for (HostTensor* tensor : {&p.x, &p.dy}) {
        const std::int64_t width = tensor->const_view().size(2);
        for (std::int64_t b = 0; b < p.sizes.batch; ++b)
          for (std::int64_t t = p.length(b); t < p.sizes.steps; ++t)
            for (std::int64_t i = 0; i < width; ++i) tensor->put((t * p.sizes.batch + b) * width + i, padding);
        expect_same(proof::run_recurrent(p, options), expected);
      }
  });
}

/// Keras and JAX keep one bias where torch has two: either alone is the sum of both. Not so in a GRU that resets the product.
TEST(RecurrentReports, OneBiasOrTwo_sanitize) {
  for_all("steps=3 batch=2 inputs=4 hidden=6 training=0", [](RecurrentProblem p, const PlanOptions& options) {
    HostWeights& w = p.weights[0];
    for (std::int64_t i = 0; i < p.gates(); ++i) w.b_ih.put(i, 0.25 * static_cast<double>(i % 3)), w.b_hh.put(i, 0.5);
    const auto both = proof::run_recurrent(p, options).y.values();
    const HostTensor b_hh = w.b_hh;
    for (std::int64_t i = 0; i < p.gates(); ++i) w.b_ih.put(i, w.b_ih.at(i) + 0.5);
    w.b_hh = {};
    const auto first = proof::run_recurrent(p, options).y.values();
    w.b_hh = w.b_ih, w.b_ih = {};
    const auto second = proof::run_recurrent(p, options).y.values();
    // Only the order of the sums differs, and that on the reference alone.
    const double bound = 32 * std::max(test::unit_roundoff(p.description.dtype), test::unit_roundoff(DType::f32));
    const bool apart = p.description.cell == Cell::gru;
    for (const auto& one : {first, second}) {
      const std::string fault = test::compare(one, both, apart ? 0 : bound);
      EXPECT_EQ(fault.empty(), !apart) << fault;
    }
  });
}

/// A run that found nothing leaves the status as it was.
TEST(RecurrentReports, StatusIsOnlyAddedTo_sanitize) {
  for_all("steps=3 batch=2 inputs=4 hidden=6 lengths=random", [](const RecurrentProblem& p, const PlanOptions& options) {
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    RecurrentResult r = proof::blank_result(p, plan);
    std::int32_t bits = 0;
    const auto weights = p.weight_views();
    const auto gradients = proof::gradient_views(r);
    for (const std::int32_t before : {0, 4}) {
      bits = before;
      RecurrentForward forward = proof::forward_tensors(p, r, weights);
      forward.status = TensorView(&bits, DType::i32, {1});
      plan.forward(forward, {r.workspace.data(), r.workspace.bytes()});
      RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
      backward.status = forward.status;
      plan.backward(backward, {r.workspace.data(), r.workspace.bytes()});
      EXPECT_EQ(bits, before);
    }
  });
}

/// A view of the same shape in sparse memory from `offset` on, which moves behind it, with `step` elements between the parts of its
/// first dimension (a matrix, which has more rows: an eighth).
TensorView spread(const test::SparseMemory& memory, const HostTensor& from, std::int64_t step, std::int64_t& offset) {
  TensorView view = from.view();
  if (!view.given()) return view;
  view.data = memory.data() + offset;
  if (view.rank == 3) view.strides = {step, view.size(2), 1};
  if (view.rank == 2) view.strides = {step / 8, 1};
  offset += (view.size(0) * view.stride(0) + 4096) * static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = view.rank - 1; d >= 0; --d) at += rest % view.size(d) * view.stride(d), rest /= view.size(d);
    test::write_element(view.data, view.dtype, at, from.at(i));
  }
  return view;
}
std::vector<double> gathered(const TensorView& view) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = view.rank - 1; d >= 0; --d) at += rest % view.size(d) * view.stride(d), rest /= view.size(d);
    out.push_back(test::read_element(view.data, view.dtype, at));
  }
  return out;
}

/// pytorch#191924, pytorch#177834: offsets past 2^31 elements overflow. Here every step of x, y and their gradients, every
/// direction of a state and every eighth row of a matrix lies 2^31 elements and more behind the one before.
TEST(RecurrentReports, OffsetsPast31Bits) {
  constexpr std::int64_t step = (std::int64_t{1} << 31) + 4096;
  const test::SparseMemory memory(static_cast<std::size_t>(step) * 4 * 80);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address range of 640 GiB";
  for_all("steps=3 batch=2 inputs=4 hidden=5 bidirectional=1 dense=1", [&](const RecurrentProblem& p, const PlanOptions& options) {
    const RecurrentResult expected = proof::run_recurrent(p, options);
    const RecurrentPlan plan(p.description, p.sizes, Device::cpu(), options);
    RecurrentResult r = proof::blank_result(p, plan);
    std::int64_t offset = 0;
    const auto far = [&](const HostTensor& tensor) { return spread(memory, tensor, step, offset); };
    std::vector<RecurrentWeights> weights;
    std::vector<RecurrentWeightGradients> gradients;
    for (const HostWeights& w : p.weights) weights.push_back({far(w.w_ih), far(w.w_hh), far(w.b_ih), far(w.b_hh), far(w.w_hr)});
    for (const HostWeights& w : r.dweights) gradients.push_back({far(w.w_ih), far(w.w_hh), far(w.b_ih), far(w.b_hh), far(w.w_hr)});
    RecurrentForward forward = proof::forward_tensors(p, r, weights);
    const TensorView y = far(r.y), hn = far(r.hn), cn = far(r.cn), dx = far(r.dx), dh0 = far(r.dh0), dc0 = far(r.dc0);
    forward.x = far(p.x), forward.h0 = far(p.h0), forward.c0 = far(p.c0), forward.y = y, forward.hn = hn, forward.cn = cn;
    plan.forward(forward, {r.workspace.data(), r.workspace.bytes()});
    RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
    backward.x = forward.x, backward.h0 = forward.h0, backward.c0 = forward.c0, backward.y = y;
    backward.dy = far(p.dy), backward.dhn = far(p.dhn), backward.dcn = far(p.dcn);
    backward.dx = dx, backward.dh0 = dh0, backward.dc0 = dc0;
    plan.backward(backward, {r.workspace.data(), r.workspace.bytes()});
    std::vector<TensorView> views{y, hn};
    if (cn.given()) views.push_back(cn);
    views.insert(views.end(), {dx, dh0});
    if (dc0.given()) views.push_back(dc0);
    for (const RecurrentWeightGradients& g : gradients)
      for (const TensorView& view : {g.w_ih, g.w_hh, g.b_ih, g.b_hh, g.w_hr})
        if (view.given()) views.push_back(view);
    const auto outputs = expected.outputs();
    ASSERT_EQ(views.size(), outputs.size());
    for (std::size_t i = 0; i < views.size(); ++i) EXPECT_EQ(gathered(views[i]), outputs[i].second.values()) << outputs[i].first;
  });
}

}  // namespace
}  // namespace everglow
