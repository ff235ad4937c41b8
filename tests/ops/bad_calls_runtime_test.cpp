// Bad calls outside the layers: views, copies, memory, and names.
#include "ops/bad_calls.hpp"

#include <everglow/everglow.hpp>

#include <limits>

namespace everglow {
namespace {

constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

struct Copy {
  test::Pool pool;
  TensorView to = pool.tensor(DType::f32, {3, 4});
  ConstTensorView from = pool.tensor(DType::f32, {3, 4});
  Stream stream;

  Copy() { std::memset(to.data, 0, 48); }
  void call(std::string_view) { copy(to, from, stream); }
};

constexpr test::BadCall<Copy> copies[] = {
    {"to missing", "copy", invalid, "expected two views, got not given and [3, 4] f32 cpu", [](Copy& w) { w.to = {}; }},
    {"from missing", "copy", invalid, "expected two views, got [3, 4] f32 cpu and not given", [](Copy& w) { w.from = {}; }},
    {"to null", "copy", invalid, "to: expected memory for [3, 4] f32 cpu, got a null pointer",
     [](Copy& w) { w.to.data = nullptr; }},
    {"from null", "copy", invalid, "from: expected memory for [3, 4] f32 cpu, got a null pointer",
     [](Copy& w) { w.from.data = nullptr; }},
    {"to misaligned", "copy", invalid, "to: expected an address that is a multiple of 4 bytes",
     [](Copy& w) { test::shift(w.to, 2); }},
    {"to with a negative size", "copy", invalid, "to: expected sizes of at least 0, got [-3, 4] f32 cpu",
     [](Copy& w) { w.to.shape[0] = w.from.shape[0] = -3; }},
    {"to of a rank that cannot be", "copy", invalid, "to: expected a rank of at most 6, got 8", [](Copy& w) { w.to.rank = 8; }},
    {"other shapes", "copy", invalid, "from: expected [3, 4] f32 cpu, got [4, 3] f32 cpu",
     [](Copy& w) { w.from = w.from.transposed(0, 1); }},
    {"other ranks", "copy", invalid, "from: expected [3, 4] f32 cpu, got [12] f32 cpu",
     [](Copy& w) { w.from = w.from.reshaped({12}); }},
    {"other dtypes", "copy", mismatch, "from: expected [3, 4] f32 cpu, got [3, 4] i32 cpu",
     [](Copy& w) { w.from.dtype = DType::i32; }},
    {"to repeated", "copy", invalid, "to: expected elements that do not overlap, got stride 0 in dimension 0",
     [](Copy& w) { w.to.strides[0] = 0; }},
    {"onto itself", "copy", invalid, "to: expected memory apart from from, got an overlap", [](Copy& w) { w.from = w.to; }},
    {"stream of another device", "copy", mismatch, "stream: expected one of the device of a view, got one of cuda:0",
     [](Copy& w) { w.stream.device = Device::cuda(0); }},
};

/// A call that needs no tensors of a layer.
struct Plain {
  std::string_view name, where;
  ErrorCode code;
  std::string_view text;
  void (*call)();
};

const TensorView& matrix() {
  static float memory[12];
  static const TensorView view(memory, DType::f32, {3, 4});
  return view;
}

constexpr Plain plain[] = {
    {"view of rank 7", "tensor.view", invalid, "expected a rank of at most 6",
     [] {
       TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1, 1, 1});
     }},
    {"view with a negative size", "tensor.view", invalid, "expected sizes of at least 0",
     [] {
       TensorView(nullptr, DType::f32, {3, -1});
     }},
    {"part past the end", "tensor.narrow", invalid, "expected a part that lies inside the view", [] { matrix().narrow(0, 2, 2); }},
    {"part before the start", "tensor.narrow", invalid, "expected a part", [] { matrix().narrow(0, -1, 1); }},
    {"part of a negative length", "tensor.narrow", invalid, "expected a part", [] { matrix().narrow(1, 3, -2); }},
    {"part past 2^63", "tensor.narrow", invalid, "expected a part", [] { matrix().narrow(1, most, 4); }},
    {"part of no dimension", "tensor.narrow", invalid, "expected a part", [] { matrix().narrow(2, 0, 1); }},
    {"part of no view", "tensor.narrow", invalid, "expected a part", [] { TensorView().narrow(0, 0, 0); }},
    {"reshaped to another count", "tensor.reshaped", invalid, "expected a dense view and an equal count of elements",
     [] {
       matrix().reshaped({5, 2});
     }},
    {"reshaped with gaps", "tensor.reshaped", invalid, "expected a dense view", [] { matrix().narrow(1, 0, 2).reshaped({6}); }},
    {"split unevenly", "tensor.split", invalid, "expected outer x inner to equal the dimension", [] { matrix().split(1, 3, 2); }},
    {"split by negative sizes", "tensor.split", invalid, "expected outer x inner", [] { matrix().split(1, -2, -2); }},
    {"split of no dimension", "tensor.split", invalid, "expected outer x inner", [] { matrix().split(5, 1, 1); }},
    {"exchange with no dimension", "tensor.transposed", invalid, "expected two dimensions of the view",
     [] { matrix().transposed(0, 2); }},
    {"exchange in no view", "tensor.transposed", invalid, "expected two dimensions", [] { TensorView().transposed(0, 0); }},
    {"memory of every byte", "buffer", ErrorCode::out_of_memory, "expected 18446744073709551615 bytes on cpu, got none",
     [] { Buffer(std::numeric_limits<std::size_t>::max(), Device::cpu()); }},
    {"memory of a device that is not there", "device", ErrorCode::unsupported, "CUDA", [] { Buffer(64, Device::cuda(99)); }},
    {"event of a device that is not there", "device", ErrorCode::unsupported, "CUDA", [] { Event{Device::cuda(99)}; }},
    {"stream of a device that is not there", "device", ErrorCode::unsupported, "CUDA",
     [] {
       Stream{Device::cuda(99), nullptr}.synchronize();
     }},
    {"event in a stream of another device", "event.record", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [] {
       Event().record({Device::cuda(0), nullptr});
     }},
    {"device of no such name", "device", invalid,
     "expected cpu, cuda:N, v100-16, t4, a100-40, a100-80, rtx4090, l4, l40s, h100-sxm, h100-pcie, h200, b200 (for example h200), "
     "got \"h900\"",
     [] { DeviceDescription::named("h900"); }},
    {"device in words that are none", "device", invalid, "expected cpu or cuda:N (for example cuda:0), got \"cuda:-1\"",
     [] { parse_device("cuda:-1"); }},
    {"device index with a rest", "device", invalid, "got \"cuda:0x\"", [] { parse_device("cuda:0x"); }},
    {"dtype of no such name", "dtype", invalid, "got \"f8\"", [] { parse_dtype("f8"); }},
    {"layer of no such name", "kernels", invalid, "layer: expected linear, recurrent, attention, softmax, embedding, loss",
     [] { kernels("convolution", DeviceKind::cpu); }},
};

TEST(BadCalls, Copies_sanitize) { test::expect_bad_calls<Copy>(copies); }

/// Not under the sanitizers, which end a program that asks for so much.
TEST(BadCalls, MoreMemoryThanThereIs) {
  try {
    Buffer(std::numeric_limits<std::size_t>::max() / 2, Device::cpu());
    ADD_FAILURE() << "had by the system";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_STREQ(error.what(), "[buffer] expected 9223372036854775807 bytes on cpu, got none");
  }
}

TEST(BadCalls, ViewsMemoryAndNames_sanitize) {
  for (const Plain& entry : plain) {
    SCOPED_TRACE(std::string(entry.where) + ": " + std::string(entry.name));
    try {
      entry.call();
      ADD_FAILURE() << "accepted; expected " << entry.text;
    } catch (const Error& error) {
      EXPECT_EQ(name(error.code()), name(entry.code)) << error.what();
      EXPECT_EQ(error.where(), entry.where) << error.what();
      EXPECT_NE(std::string_view(error.what()).find(entry.text), std::string_view::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace everglow
