// Elementwise operations of a card where the cases do not reach: views of three dimensions, and seeds in the card's memory.
#include "cases/proof/placement.hpp"
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

namespace everglow {
namespace {

using test::HostTensor;
class CudaPointwise : public test::OnCard {
 protected:
  void run(const PointwiseDescription& d, const PointwiseRun& tensors) const {
    proof::Placement place(card);
    PointwisePlan(d, {tensors.y.elements()}, card).run(proof::placed(place, tensors), {}, place.stream());
    place.finish();
  }
};

/// No two of the dimensions join. Sums, products and relu round once on both sides.
TEST_F(CudaPointwise, ViewsOfThreeDimensions_sanitize) {
  HostTensor a(DType::f32, {7, 5, 9}), b(DType::f32, {9, 7, 5}), y(DType::f32, {5, 9, 7}), expected(DType::f32, {5, 9, 7});
  a.uniform(1, -2, 2), b.uniform(2, -2, 2);
  // a and b as [5, 9, 7]
  PointwiseRun t{.a = a.view().transposed(0, 1).transposed(1, 2), .b = b.view().transposed(0, 2).transposed(1, 2), .y = y};
  for (const Pointwise operation : {Pointwise::add, Pointwise::multiply, Pointwise::activation_gradient}) {
    const PointwiseDescription d{.operation = operation,
                                 .activation = operation == Pointwise::activation_gradient ? Activation::relu : Activation::none};
    PointwiseRun host = t;
    host.y = expected;
    PointwisePlan(d, {t.y.elements()}).run(host);
    y.poison();
    run(d, t);
    EXPECT_EQ("", test::compare(y.values(), expected.values(), 0));
  }
  t.b = {};
  for (const Activation activation : {Activation::relu, Activation::none}) {
    const PointwiseDescription d{.operation = Pointwise::activation, .activation = activation};
    PointwiseRun host = t;
    host.y = expected;
    PointwisePlan(d, {t.y.elements()}).run(host);
    run(d, t);
    EXPECT_EQ("", test::compare(y.values(), expected.values(), 0));
  }
}

/// Seed and offset as numbers, or in the card's memory: the same elements are dropped, and the same as on the CPU.
TEST_F(CudaPointwise, DropoutStateIsReadOnTheCard_sanitize) {
  for (const std::int64_t columns : {64, 61}) {
    HostTensor a(DType::f32, {33, columns}), y(DType::f32, {33, columns}), expected(DType::f32, {33, columns}),
        state(DType::i64, {2});
    a.uniform(1, 1, 2);
    state.put(0, 4711), state.put(1, 99);
    const PointwiseDescription d{.operation = Pointwise::dropout, .dropout = 0.5F};
    PointwisePlan(d, {33 * columns}).run({.a = a, .y = expected, .dropout_seed = 4711, .dropout_offset = 99});
    run(d, {.a = a, .y = y, .dropout_state = state});
    EXPECT_EQ("", test::compare(y.values(), expected.values(), 0));
    y.poison();
    run(d, {.a = a, .y = y, .dropout_seed = 4711, .dropout_offset = 99});
    EXPECT_EQ("", test::compare(y.values(), expected.values(), 0));
  }
}

}  // namespace
}  // namespace everglow
