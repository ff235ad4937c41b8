// Recurrent layers on a card where the cases do not reach: lengths that are clamped and reported, dropout's state in the card's
// memory, streaming, capture into a graph, and two streams at once.
#include "cases/proof/placement.hpp"
#include "cases/proof/recurrent_problem.hpp"
#include "cuda/card.hpp"

#include <everglow/everglow.hpp>

#include <cuda_runtime_api.h>

#include <cmath>

namespace everglow {
namespace {

using proof::HostTensor;
using proof::Placement;
using proof::RecurrentProblem;
using proof::RecurrentResult;
using proof::Scratch;

class CudaRecurrent : public test::OnCard {};

constexpr const char* cells[] = {"lstm", "gru", "gru_reset_before", "tanh", "relu"};

RecurrentProblem problem(const std::string& rest) { return RecurrentProblem(cases::parse("recurrent " + rest)); }
RecurrentPlan plan_of(const RecurrentProblem& p, const PlanOptions& options = {}) {
  return RecurrentPlan(p.description, p.sizes, Device::cuda(0), options);
}

void expect_same(const RecurrentResult& actual, const RecurrentResult& expected) {
  const auto a = actual.outputs(), b = expected.outputs();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].second.values(), b[i].second.values()) << a[i].first;
}

/// Both passes of a problem, whose tensors `change` may change before they run.
template <class Change>
RecurrentResult run(const RecurrentProblem& p, const Change& change) {
  const RecurrentPlan plan = plan_of(p);
  RecurrentResult r = proof::blank_result(p, plan);
  const auto weights = p.weight_views();
  const auto gradients = proof::gradient_views(r);
  RecurrentForward forward = proof::forward_tensors(p, r, weights);
  RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
  change(forward);
  proof::forward_on(Device::cuda(0), plan, forward, r.workspace);
  change(backward);
  proof::backward_on(Device::cuda(0), plan, backward, r.workspace);
  return r;
}

TEST_F(CudaRecurrent, LengthsOutOfRangeAreClampedAndReported_sanitize) {
  for (const char* cell : cells) {
    SCOPED_TRACE(cell);
    RecurrentProblem p = problem(std::string("steps=4 batch=3 inputs=3 hidden=5 bidirectional=1 lengths=random cell=") + cell);
    const RecurrentResult expected = run(p, [](auto&) {});
    p.lengths.put(0, -3), p.lengths.put(1, 9);  // they were 0 and all steps
    HostTensor status(DType::i32, {1});
    int passes = 0;
    const RecurrentResult clamped = run(p, [&](auto& tensors) {
      if (passes++ > 0) {
        EXPECT_EQ(status.at(0), 4 + status_lengths) << "forward";
      }
      status.fill(4), tensors.status = status;
    });
    EXPECT_EQ(status.at(0), 4 + status_lengths) << "backward";
    expect_same(clamped, expected);
  }
}

/// A sum and the stored gradient are rounded once each: to f32, or to f16 beside f16's own rounding of what did not accumulate.
TEST_F(CudaRecurrent, AccumulateAddsToTheWeightGradients_sanitize) {
  for (const char* cell : {"lstm", "gru", "gru_reset_before"})
    for (const char* gradient : {"f16", "f32"}) {
      SCOPED_TRACE(std::string(cell) + ' ' + gradient);
      const RecurrentProblem p =
          problem(std::string("steps=4 batch=3 inputs=5 hidden=6 dtype=f16 gradient_dtype=") + gradient + " cell=" + cell);
      RecurrentResult expected = run(p, [](auto&) {}), added = expected;
      const auto fresh = expected.outputs();
      std::vector<std::vector<double>> values;
      for (const auto& [name, tensor] : fresh) values.push_back(tensor.values());
      for (proof::HostWeights& w : added.dweights)
        for (HostTensor* tensor : {&w.w_ih, &w.w_hh, &w.b_ih, &w.b_hh}) tensor->fill(0.75);
      const auto weights = p.weight_views();
      const auto gradients = proof::gradient_views(added);
      RecurrentBackward backward = proof::backward_tensors(p, added, weights, gradients);
      backward.accumulate = true;
      proof::backward_on(card, plan_of(p), backward, added.workspace);
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        const bool weight = fresh[i].first.starts_with("w_") || fresh[i].first.starts_with("b_");
        const double unit = weight ? proof::unit_roundoff(p.gradient_dtype) : 0;
        std::vector<double> sums, bounds;
        for (const double value : values[i]) {
          sums.push_back(value + (weight ? 0.75 : 0));
          bounds.push_back(2 * unit * (std::fabs(value) + 0.75));
        }
        EXPECT_EQ("", proof::compare(fresh[i].second.values(), sums, bounds)) << fresh[i].first;
      }
    }
}

TEST_F(CudaRecurrent, DropoutReadsItsStateOnTheCard_sanitize) {
  const RecurrentProblem p = problem("cell=gru steps=3 batch=4 inputs=3 hidden=6 layers=3 dropout=0.4");
  HostTensor state(DType::i64, {2});
  state.put(0, static_cast<double>(p.dropout_seed)), state.put(1, static_cast<double>(p.dropout_offset));
  expect_same(run(p, [&](auto& tensors) { tensors.dropout_seed = tensors.dropout_offset = 0, tensors.dropout_state = state; }),
              run(p, [](auto&) {}));
}

/// A step at a time with hn and cn handed on gives the bits of the whole sequence, and a row alone those of the batch.
TEST_F(CudaRecurrent, StreamsTheSameBits) {
  for (const char* cell : cells)
    for (const char* dtype : {"f32", "bf16"}) {
      const RecurrentProblem p =
          problem(std::string("steps=5 batch=7 inputs=40 hidden=70 training=0 cell_dtype=f32 cell=") + cell + " dtype=" + dtype);
      SCOPED_TRACE(std::string(cell) + ' ' + dtype);
      const auto weights = p.weight_views();
      const RecurrentResult whole = proof::run_recurrent(p, {.deterministic = true}, {.device = card});
      RecurrentProblem one = p;
      one.sizes = {1, 1};
      const RecurrentPlan plan = plan_of(one, {.deterministic = true});
      RecurrentResult streamed = proof::blank_result(p, plan_of(p, {.deterministic = true}));
      const Scratch scratch(plan.workspace_bytes());
      for (std::int64_t b = 0; b < p.sizes.batch; b += 3)
        for (std::int64_t step = 0; step < p.sizes.steps; ++step) {
          const RecurrentResult before = streamed;  // the memory is the same
          HostTensor h0(p.description.dtype, {1, 1, p.outputs()}), c0(DType::f32, {1, 1, p.description.hidden});
          const auto hand_on = [&](HostTensor& to, const HostTensor& first, const HostTensor& last) {
            const HostTensor& from = step == 0 ? first : last;
            for (std::int64_t j = 0; j < to.const_view().size(2); ++j) to.put(j, from.at(b * to.const_view().size(2) + j));
          };
          hand_on(h0, p.h0, before.hn);
          const bool lstm = p.description.cell == Cell::lstm;
          if (lstm) hand_on(c0, p.c0, before.cn);
          const auto row = [&](const TensorView& view, std::int64_t i) { return view.narrow(0, i, 1).narrow(1, b, 1); };
          RecurrentForward t{
              .x = row(p.x, step), .h0 = h0, .weights = weights, .y = row(streamed.y, step), .hn = row(streamed.hn, 0)};
          if (lstm) t.c0 = c0, t.cn = row(streamed.cn, 0);
          proof::forward_on(card, plan, t, scratch);
          for (std::int64_t j = 0, at = (step * p.sizes.batch + b) * p.width(); j < p.width(); ++j)
            ASSERT_EQ(streamed.y.at(at + j), whole.y.at(at + j)) << "row " << b << ", step " << step;
        }
    }
}

/// A captured run of both passes gives at each replay what a plain one does, and draws new masks where the state has moved on.
TEST_F(CudaRecurrent, IsCapturedIntoAGraph) {
  const RecurrentProblem p =
      problem("cell=lstm steps=6 batch=32 inputs=64 hidden=128 layers=2 bidirectional=1 lengths=random dropout=0.3 dtype=f16");
  const RecurrentPlan plan = plan_of(p);
  RecurrentResult r = proof::blank_result(p, plan);
  const auto weights = p.weight_views();
  const auto gradients = proof::gradient_views(r);
  HostTensor state(DType::i64, {2});
  state.put(0, 11), state.put(1, 5);
  RecurrentForward forward = proof::forward_tensors(p, r, weights);
  RecurrentBackward backward = proof::backward_tensors(p, r, weights, gradients);
  const auto with_state = [&](auto& t) { t.dropout_seed = t.dropout_offset = 0, t.dropout_state = state; };
  with_state(forward), with_state(backward);
  Placement place(card);
  const RecurrentForward there = proof::placed(place, forward);
  const RecurrentBackward back = proof::placed(place, backward);
  const Workspace workspace = place(r.workspace);
  cudaStream_t own = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&own));
  const Stream mine{card, own};
  const auto both = [&] { plan.forward(there, workspace, mine), plan.backward(back, workspace, mine); };
  const auto values = [&] {
    mine.synchronize();
    place.finish();
    std::vector<std::vector<double>> out;
    for (const auto& [name, tensor] : r.outputs()) out.push_back(tensor.values());
    return out;
  };
  both();
  const auto plain = values();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
  both();
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(own, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&ready, graph, 0));
  for (int replay = 0; replay < 2; ++replay) {
    ASSERT_EQ(cudaSuccess, cudaGraphLaunch(ready, own));
    EXPECT_EQ(values(), plain) << "replay " << replay;
  }
  state.put(1, 5 + static_cast<double>(plan.dropout_counters()));
  copy(TensorView(const_cast<void*>(there.dropout_state.data), DType::i64, {2}, card), state, mine);
  ASSERT_EQ(cudaSuccess, cudaGraphLaunch(ready, own));
  EXPECT_NE(values(), plain) << "the same masks";
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaStreamDestroy(own);
}

/// One plan, two streams at once, a workspace each.
TEST_F(CudaRecurrent, RunsOnTwoStreamsAtOnce) {
  const RecurrentProblem p = problem("cell=gru steps=8 batch=32 inputs=64 hidden=128 dtype=bf16 training=0");
  const RecurrentPlan plan = plan_of(p);
  const auto weights = p.weight_views();
  const RecurrentResult expected = proof::run_recurrent(p, {}, {.device = card});
  RecurrentResult results[] = {proof::blank_result(p, plan), proof::blank_result(p, plan)};
  Placement places[] = {Placement(card), Placement(card)};
  cudaStream_t streams[2] = {nullptr, nullptr};
  RecurrentForward forwards[2];
  Workspace workspaces[2];
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    forwards[i] = proof::placed(places[i], proof::forward_tensors(p, results[i], weights));
    workspaces[i] = places[i](results[i].workspace);
    places[i].stream().synchronize();
  }
  for (int repeat = 0; repeat < 4; ++repeat)
    for (std::size_t i = 0; i < 2; ++i) plan.forward(forwards[i], workspaces[i], {card, streams[i]});
  for (std::size_t i = 0; i < 2; ++i) {
    Stream{card, streams[i]}.synchronize();
    places[i].finish();
    expect_same(results[i], expected);
    cudaStreamDestroy(streams[i]);
  }
}

}  // namespace
}  // namespace everglow
