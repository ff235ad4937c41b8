// Cards as devices: memory, copies of any strides, events, and what is said where there is no card.
#include "cuda/card.hpp"
#include "support/tensor.hpp"

#include <everglow/everglow.hpp>

#include <numeric>

namespace everglow {
namespace {

using test::HostTensor;
class Cards : public test::OnCard {};

/// A view of new memory on a card.
struct CardTensor {
  Buffer memory;
  TensorView view;
  CardTensor(DType dtype, std::initializer_list<std::int64_t> shape, Device device) : view(nullptr, dtype, shape, device) {
    memory = Buffer(static_cast<std::size_t>(view.elements()) * size_of(dtype), device);
    view.data = memory.data();
  }
};

std::vector<double> counted(std::int64_t n) {
  std::vector<double> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 1);
  return out;
}

TEST(CardsWithoutOne, SayWhatIsMissing) {
  const BackendStatus cuda = test::backend("cuda");
  if (cuda.usable) GTEST_SKIP() << "there is a card: " << cuda.reason;
  EXPECT_NE(cuda.reason.find("CUDA"), std::string::npos) << cuda.reason;
  EXPECT_EQ(DeviceDescription(Device::cuda(0)).figures.capability, 0);
  try {
    Buffer(16, Device::cuda(0));
    ADD_FAILURE() << "memory on a card that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(std::string(error.what()), "[device] " + cuda.reason);
  }
}

TEST_F(Cards, DescribeThemselves) {
  const DeviceDescription device(card);
  EXPECT_EQ(device.name, "cuda:0");
  EXPECT_TRUE(device.present);
  EXPECT_GE(device.figures.capability, 50);
  EXPECT_GT(device.figures.units, 0);
  EXPECT_GT(device.figures.memory_gib, 0);
  EXPECT_GT(device.figures.bandwidth_gbs, 0);
  EXPECT_GE(device.figures.shared_bytes, 48 << 10);
  EXPECT_THROW(Buffer(16, Device::cuda(99)), Error);
}

TEST_F(Cards, CopyAnyStrides_sanitize) {
  for (const DType dtype : {DType::f32, DType::f16, DType::f64, DType::u8, DType::i32}) {
    SCOPED_TRACE(name(dtype));
    HostTensor from(dtype, {3, 5, 7}), to(dtype, {7, 5, 3}, 4);
    from.set(counted(105));
    CardTensor a(dtype, {5, 3, 7}, card), b(dtype, {3, 7, 5}, card);
    copy(a.view.transposed(0, 1), from, stream);                        // host to card, rows of 7 apart
    copy(b.view.transposed(1, 2), a.view.transposed(0, 1), stream);     // on the card, elements apart
    copy(to.view().transposed(0, 2), b.view.transposed(1, 2), stream);  // card to host, in parts
    stream.synchronize();
    EXPECT_EQ(test::gathered(to.view().transposed(0, 2)), counted(105));
    EXPECT_TRUE(to.guards_intact());
  }
}

TEST_F(Cards, CopyRowsAndPartsOnTheCpusStream_sanitize) {
  HostTensor from(DType::f32, {9, 11}, 13), to(DType::f32, {9, 11}, 17);
  from.set(counted(99));
  CardTensor a(DType::f32, {9, 20}, card);
  copy(a.view.narrow(1, 4, 11), from);  // done when the call returns
  copy(to, a.view.narrow(1, 4, 11));
  EXPECT_EQ(to.values(), counted(99));
  EXPECT_TRUE(to.guards_intact());
  HostTensor odd(DType::f32, {5, 11}), back(DType::f32, {5, 11});
  odd.set(counted(55));
  TensorView every_other = a.view.narrow(1, 0, 11).narrow(0, 0, 5);
  every_other.strides[0] = 36, every_other.strides[1] = 2;
  copy(every_other, odd);
  copy(back, every_other);
  EXPECT_EQ(back.values(), counted(55));
}

TEST_F(Cards, EventsOrderStreams) {
  Event event(card);
  HostTensor from(DType::f32, {64}), to(DType::f32, {64});
  from.set(counted(64));
  CardTensor a(DType::f32, {64}, card);
  copy(a.view, from, stream);
  event.record(stream);
  event.wait(stream);
  event.synchronize();
  copy(to, a.view, stream);
  stream.synchronize();
  EXPECT_EQ(to.values(), counted(64));
  EXPECT_THROW(event.record(Stream{}), Error);
}

/// Work that is recorded does not run; each launch runs it once, on what lies in the memory then.
TEST_F(Cards, GraphsRunWhatTheyWereTold_sanitize) {
  const OwnedStream own(card);
  const Buffer host = Buffer::on_host(64 * sizeof(float), card);
  const TensorView here(host.data(), DType::f32, {64});
  EXPECT_EQ(host.device(), Device::cpu());
  CardTensor a(DType::f32, {64}, card), b(DType::f32, {64}, card);
  const PointwisePlan add({.operation = Pointwise::add}, {64}, card);
  const auto values = [&] {
    HostTensor out(DType::f32, {64});
    copy(out, b.view);
    return out.values();
  };
  HostTensor first(DType::f32, {64});
  first.set(counted(64));
  copy(here, first);
  copy(a.view, here, own.stream());
  copy(b.view, here, own.stream());
  const Graph graph = Graph::capture(own.stream(), [&] { add.run({.a = a.view, .b = b.view, .y = b.view}, {}, own.stream()); });
  ASSERT_TRUE(graph.given());
  EXPECT_EQ(values(), counted(64));
  graph.launch(own.stream());
  graph.launch(own.stream());
  std::vector<double> expected = counted(64);
  for (double& value : expected) value *= 3;
  EXPECT_EQ(values(), expected);
}

TEST_F(Cards, ACaptureThatFailsLeavesTheStreamUsable) {
  const OwnedStream own(card);
  CardTensor a(DType::f32, {4}, card);
  const PointwisePlan fill({.operation = Pointwise::fill, .factor = 2}, {4}, card);
  const auto work = [&] { fill.run({.y = a.view}, {}, own.stream()); };
  EXPECT_THROW(Graph::capture(own.stream(), [&] { work(), throw Error(ErrorCode::io, "test", "no more"); }), Error);
  EXPECT_THROW(Graph::capture(stream, work), Error);  // the default stream of the card
  work();
  HostTensor out(DType::f32, {4});
  copy(out, a.view);
  EXPECT_EQ(out.values(), std::vector<double>(4, 2.0));
}

TEST_F(Cards, MoreMemoryThanThereIs) {
  try {
    Buffer(std::size_t{1} << 50, card);
    ADD_FAILURE() << "had by the card";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_NO_THROW(Buffer(16, card));  // the fault is not reported twice
}

TEST_F(Cards, StatusIsReadAndCleared) {
  HostTensor bits(DType::i32, {1});
  bits.fill(status_lengths);
  CardTensor status(DType::i32, {1}, card);
  copy(status.view, bits, stream);
  EXPECT_THROW(check_status(status.view, stream), Error);
  EXPECT_NO_THROW(check_status(status.view, stream));
}

}  // namespace
}  // namespace everglow
