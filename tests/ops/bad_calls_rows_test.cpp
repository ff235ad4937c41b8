// Bad calls of the softmax, the embedding and the classifier loss.
#include "ops/bad_calls.hpp"

#include <everglow/embedding.hpp>
#include <everglow/loss.hpp>
#include <everglow/softmax.hpp>

#include <limits>

namespace everglow {
namespace {

constexpr auto invalid = ErrorCode::invalid_argument, mismatch = ErrorCode::type_mismatch;

struct Softmax {
  test::Pool pool;
  SoftmaxDescription description;
  SoftmaxSizes sizes{5, 8};
  PlanOptions options;
  SoftmaxPlan plan{description, sizes};
  TensorView x = pool.tensor(DType::f32, {5, 8}), y = pool.tensor(DType::f32, {5, 8}), dy = pool.tensor(DType::f32, {5, 8});
  SoftmaxForward forward{x, y};
  SoftmaxBackward backward{x, dy, pool.tensor(DType::f32, {5, 8})};
  Stream stream;

  Softmax() { std::memset(x.data, 0, 160), std::memset(dy.data, 0, 160); }
  void call(std::string_view where) {
    if (where == "softmax.plan") SoftmaxPlan(description, sizes, Device::cpu(), options);
    if (where == "softmax.forward") plan.forward(forward, {}, stream);
    if (where == "softmax.backward") plan.backward(backward, {}, stream);
  }
};

constexpr test::BadCall<Softmax> softmaxes[] = {
    {"negative rows", "softmax.plan", invalid, "rows: expected 0 or more, got -5", [](Softmax& w) { w.sizes.rows = -5; }},
    {"negative columns", "softmax.plan", invalid, "columns: expected 0 or more, got -8", [](Softmax& w) { w.sizes.columns = -8; }},
    {"sizes past 2^63", "softmax.plan", invalid, "rows x columns: expected fewer than 2^56 elements",
     [](Softmax& w) { w.sizes.rows = std::int64_t{1} << 60; }},
    {"mask dtype", "softmax.plan", mismatch, "dtype: expected f32, f16, bf16 or f64, got u8",
     [](Softmax& w) { w.description.dtype = DType::u8; }},
    {"no such masked_row", "softmax.plan", invalid, "masked_row: expected nan or zero, got 3",
     [](Softmax& w) { w.description.masked_row = static_cast<MaskedRow>(3); }},
    {"unknown row", "softmax.plan", invalid, "force: expected one of", [](Softmax& w) { w.options.force = "cpu.softmax_fast"; }},
    {"x missing", "softmax.forward", invalid, "x: expected [any, 8] f32 cpu, got not given", [](Softmax& w) { w.forward.x = {}; }},
    {"x null", "softmax.forward", invalid, "x: expected memory for [5, 8] f32 cpu, got a null pointer",
     [](Softmax& w) { w.forward.x.data = nullptr; }},
    {"x in i32", "softmax.forward", mismatch, "x: expected [any, 8] f32 cpu, got [5, 8] i32 cpu",
     [](Softmax& w) { w.forward.x.dtype = DType::i32; }},
    {"more rows than the plan", "softmax.forward", invalid, "x: expected at most 5 rows, got 6",
     [](Softmax& w) {
       w.forward.x = w.forward.y = w.pool.tensor(DType::f32, {6, 8});
     }},
    {"x with columns apart", "softmax.forward", invalid, "x: expected a last dimension whose stride is 1, got stride 5",
     [](Softmax& w) {
       w.forward.x = w.pool.tensor(DType::f32, {8, 5}).transposed(0, 1);
     }},
    {"y elsewhere", "softmax.forward", mismatch, "y: expected [any, 8] f32 cpu, got [5, 8] f32 cuda:0",
     [](Softmax& w) { w.forward.y.device = Device::cuda(0); }},
    {"y with fewer rows than x", "softmax.forward", invalid, "y: expected [5, 8] f32 cpu, got [4, 8] f32 cpu",
     [](Softmax& w) { w.forward.y.shape[0] = 4; }},
    {"y whose rows overlap", "softmax.forward", invalid, "y: expected elements that do not overlap, got stride 7 in dimension 0",
     [](Softmax& w) { w.forward.y.strides[0] = 7; }},
    {"y one element after x", "softmax.forward", invalid, "y: expected memory apart from x, got an overlap",
     [](Softmax& w) { w.forward.y.data = static_cast<float*>(w.x.data) + 1; }},
    {"y in the place of x with other strides", "softmax.forward", invalid, "y: expected memory apart from x, got an overlap",
     [](Softmax& w) { w.forward.y.data = w.x.data, w.forward.y.strides[0] = 9; }},
    {"stream of another device", "softmax.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Softmax& w) { w.stream.device = Device::cuda(0); }},
    {"dy missing", "softmax.backward", invalid, "dy: expected [any, 8] f32 cpu, got not given",
     [](Softmax& w) { w.backward.dy = {}; }},
    {"dy with fewer rows than y", "softmax.backward", invalid, "dy: expected [5, 8] f32 cpu, got [2, 8] f32 cpu",
     [](Softmax& w) { w.backward.dy.shape[0] = 2; }},
    {"dx missing", "softmax.backward", invalid, "dx: expected [any, 8] f32 cpu, got not given",
     [](Softmax& w) { w.backward.dx = {}; }},
    {"dx misaligned", "softmax.backward", invalid, "dx: expected an address that is a multiple of 4 bytes",
     [](Softmax& w) { test::shift(w.backward.dx, 1); }},
    {"dx half over dy", "softmax.backward", invalid, "dx: expected memory apart from dy, got an overlap",
     [](Softmax& w) { w.backward.dx.data = static_cast<float*>(w.dy.data) + 20; }},
};

/// Seven words of six numbers; at most six indices.
struct Embedding {
  test::Pool pool;
  EmbeddingDescription description{.vocabulary = 7, .width = 6};
  EmbeddingSizes sizes{6};
  EmbeddingPlan plan{description, sizes};
  TensorView indices = pool.tensor(DType::i32, {3, 2}), table = pool.tensor(DType::f32, {7, 6});
  TensorView y = pool.tensor(DType::f32, {3, 2, 6}), dy = pool.tensor(DType::f32, {3, 2, 6});
  EmbeddingForward forward{indices, table, y};
  EmbeddingBackward backward{indices, dy, pool.tensor(DType::f32, {7, 6})};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  Stream stream;

  Embedding() { std::memset(table.data, 0, 168), std::memset(dy.data, 0, 144); }
  std::int32_t& index(int i) { return static_cast<std::int32_t*>(indices.data)[i]; }
  void call(std::string_view where) {
    if (where == "embedding.plan") EmbeddingPlan(description, sizes);
    if (where == "embedding.forward") plan.forward(forward, workspace, stream);
    if (where == "embedding.backward") plan.backward(backward, workspace, stream);
  }
};

constexpr test::BadCall<Embedding> embeddings[] = {
    {"negative vocabulary", "embedding.plan", invalid, "vocabulary: expected 0 or more, got -7",
     [](Embedding& w) { w.description.vocabulary = -7; }},
    {"negative width", "embedding.plan", invalid, "width: expected 0 or more, got -6",
     [](Embedding& w) { w.description.width = -6; }},
    {"negative count of indices", "embedding.plan", invalid, "indices: expected 0 or more, got -1",
     [](Embedding& w) { w.sizes.indices = -1; }},
    {"padding index past the vocabulary", "embedding.plan", invalid, "padding_index: expected -1 or less than vocabulary 7, got 7",
     [](Embedding& w) { w.description.padding_index = 7; }},
    {"padding index below -1", "embedding.plan", invalid, "padding_index: expected -1 or less than vocabulary 7, got -2",
     [](Embedding& w) { w.description.padding_index = -2; }},
    {"table past 2^63", "embedding.plan", invalid, "vocabulary x width: expected fewer than 2^56 elements",
     [](Embedding& w) { w.description.vocabulary = w.description.width = std::int64_t{1} << 32; }},
    {"indices missing", "embedding.forward", invalid, "indices: expected i32 or i64 indices, got not given",
     [](Embedding& w) { w.forward.indices = {}; }},
    {"indices null", "embedding.forward", invalid, "indices: expected memory for [3, 2] i32 cpu, got a null pointer",
     [](Embedding& w) { w.forward.indices.data = nullptr; }},
    {"indices in u8", "embedding.forward", mismatch, "indices: expected i32 or i64, got [3, 2] u8 cpu",
     [](Embedding& w) { w.forward.indices.dtype = DType::u8; }},
    {"indices elsewhere", "embedding.forward", mismatch, "indices: expected [3, 2] i32 cpu, got [3, 2] i32 cuda:0",
     [](Embedding& w) { w.forward.indices.device = Device::cuda(0); }},
    {"indices of rank 6", "embedding.forward", invalid, "indices: expected a rank below 6, got [1, 1, 1, 1, 3, 2] i32 cpu",
     [](Embedding& w) {
       w.forward.indices = w.indices.reshaped({1, 1, 1, 1, 3, 2});
     }},
    {"more indices than the plan", "embedding.forward", invalid, "indices: expected at most 6, got 7",
     [](Embedding& w) { w.forward.indices = w.pool.tensor(DType::i32, {7}); }},
    {"an index past the vocabulary", "embedding.forward", invalid, "indices: expected 0 ... 6, got 7 in row 3",
     [](Embedding& w) { w.index(3) = 7; }},
    {"a negative index", "embedding.forward", invalid, "indices: expected 0 ... 6, got -1 in row 5",
     [](Embedding& w) { w.index(5) = -1; }},
    {"table missing", "embedding.forward", invalid, "table: expected [7, 6] f32 cpu, got not given",
     [](Embedding& w) { w.forward.table = {}; }},
    {"table of another width", "embedding.forward", invalid, "table: expected [7, 6] f32 cpu, got [7, 5] f32 cpu",
     [](Embedding& w) { w.forward.table.shape[1] = 5; }},
    {"y without the indices' shape", "embedding.forward", invalid, "y: expected [3, 2, 6] f32 cpu, got [6, 6] f32 cpu",
     [](Embedding& w) {
       w.forward.y = w.y.reshaped({6, 6});
     }},
    {"y over the table", "embedding.forward", invalid, "y: expected memory apart from table, got an overlap",
     [](Embedding& w) { w.forward.y.data = w.table.data; }},
    {"stream of another device", "embedding.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Embedding& w) { w.stream.device = Device::cuda(0); }},
    {"status in f32", "embedding.forward", mismatch, "status: expected [1] i32 cpu, got [1] f32 cpu",
     [](Embedding& w) { w.forward.status = w.pool.tensor(DType::f32, {1}); }},
    {"status over y", "embedding.forward", invalid, "status: expected memory apart from y, got an overlap",
     [](Embedding& w) { w.forward.status = TensorView(w.y.data, DType::i32, {1}); }},
    {"status over the indices in backward", "embedding.backward", invalid,
     "status: expected memory apart from indices, got an overlap",
     [](Embedding& w) { w.backward.status = TensorView(w.indices.data, DType::i32, {1}); }},
    {"dy null", "embedding.backward", invalid, "dy: expected memory for [3, 2, 6] f32 cpu, got a null pointer",
     [](Embedding& w) { w.backward.dy.data = nullptr; }},
    {"dtable missing", "embedding.backward", invalid, "dtable: expected [7, 6], got not given",
     [](Embedding& w) { w.backward.dtable = {}; }},
    {"dtable in bf16", "embedding.backward", mismatch, "dtable: expected [7, 6] f32 cpu, got [7, 6] bf16 cpu",
     [](Embedding& w) { w.backward.dtable.dtype = DType::bf16; }},
    {"dtable whose rows overlap", "embedding.backward", invalid,
     "dtable: expected elements that do not overlap, got stride 5 in dimension 0",
     [](Embedding& w) { w.backward.dtable.strides[0] = 5; }},
    {"dtable over dy", "embedding.backward", invalid, "dtable: expected memory apart from dy, got an overlap",
     [](Embedding& w) { w.backward.dtable.data = w.dy.data; }},
    {"an index past the vocabulary in backward", "embedding.backward", invalid,
     "indices: expected 0 ... 6, got 2147483647 in row 0", [](Embedding& w) { w.index(0) = 2147483647; }},
};

/// Seven classes of six inputs; at most five rows.
struct Loss {
  test::Pool pool;
  LossDescription description{.inputs = 6, .classes = 7, .training = true};
  LossSizes sizes{5};
  LossPlan plan{description, sizes};
  TensorView x = pool.tensor(DType::f32, {5, 6}), weight = pool.tensor(DType::f32, {7, 6}), bias = pool.tensor(DType::f32, {7});
  TensorView targets = pool.tensor(DType::i64, {5}), loss = pool.tensor(DType::f32, {1}), count = pool.tensor(DType::f32, {1});
  LossForward forward{.x = x, .weight = weight, .bias = bias, .targets = targets, .loss = loss, .count = count};
  LossBackward backward{.forward = forward,
                        .scale = pool.tensor(DType::f32, {1}),
                        .dx = pool.tensor(DType::f32, {5, 6}),
                        .dweight = pool.tensor(DType::f32, {7, 6}),
                        .dbias = pool.tensor(DType::f32, {7})};
  Workspace workspace = pool.workspace(plan.workspace_bytes());
  Stream stream;

  Loss() { std::memset(x.data, 0, 120), std::memset(weight.data, 0, 168), std::memset(bias.data, 0, 28); }
  std::int64_t& target(int i) { return static_cast<std::int64_t*>(targets.data)[i]; }
  void call(std::string_view where) {
    if (where == "loss.plan") LossPlan(description, sizes);
    if (where == "loss.forward") plan.forward(forward, workspace, stream);
    if (where == "loss.forward_backward") plan.forward_backward(backward, workspace, stream);
  }
};

constexpr test::BadCall<Loss> losses[] = {
    {"negative inputs", "loss.plan", invalid, "inputs: expected 0 or more, got -6", [](Loss& w) { w.description.inputs = -6; }},
    {"negative classes", "loss.plan", invalid, "classes: expected 0 or more, got -7", [](Loss& w) { w.description.classes = -7; }},
    {"negative rows", "loss.plan", invalid, "rows: expected 0 or more, got -5", [](Loss& w) { w.sizes.rows = -5; }},
    {"smoothing above 1", "loss.plan", invalid, "smoothing: expected 0 ... 1, got 1.5",
     [](Loss& w) { w.description.smoothing = 1.5F; }},
    {"smoothing not a number", "loss.plan", invalid, "smoothing: expected 0 ... 1, got nan",
     [](Loss& w) { w.description.smoothing = std::numeric_limits<float>::quiet_NaN(); }},
    {"logits past 2^63", "loss.plan", invalid, "rows x classes: expected fewer than 2^56 elements",
     [](Loss& w) { w.sizes.rows = w.description.classes = std::int64_t{1} << 33, w.description.inputs = 1; }},
    {"x null", "loss.forward", invalid, "x: expected memory for [5, 6] f32 cpu, got a null pointer",
     [](Loss& w) { w.forward.x.data = nullptr; }},
    {"more rows than the plan", "loss.forward", invalid, "x: expected at most 5 rows, got 6",
     [](Loss& w) {
       w.forward.x = w.pool.tensor(DType::f32, {6, 6});
     }},
    {"weight transposed", "loss.forward", invalid, "weight: expected [7, 6] f32 cpu, got [6, 7] f32 cpu",
     [](Loss& w) { w.forward.weight = w.weight.transposed(0, 1); }},
    {"weight whose rows overlap", "loss.forward", invalid, "weight: expected rows at least 6 elements apart, got stride 2",
     [](Loss& w) { w.forward.weight.strides[0] = 2; }},
    {"bias of another length", "loss.forward", invalid, "bias: expected [7] f32 cpu, got [6] f32 cpu",
     [](Loss& w) { w.forward.bias.shape[0] = 6; }},
    {"targets missing", "loss.forward", invalid, "targets: expected i32 or i64 indices, got not given",
     [](Loss& w) { w.forward.targets = {}; }},
    {"targets in f32", "loss.forward", mismatch, "targets: expected i32 or i64, got [5] f32 cpu",
     [](Loss& w) { w.forward.targets.dtype = DType::f32; }},
    {"a target too few", "loss.forward", invalid, "targets: expected one for each of the 5 rows of x, got 4",
     [](Loss& w) { w.forward.targets.shape[0] = 4; }},
    {"a target past the classes", "loss.forward", invalid, "targets: expected 0 ... 6 or -1, got 7 in row 2",
     [](Loss& w) { w.target(2) = 7; }},
    {"a target that is neither class nor ignored", "loss.forward", invalid, "targets: expected 0 ... 6 or -1, got -100 in row 4",
     [](Loss& w) { w.target(4) = -100; }},
    {"a target past 2^32", "loss.forward", invalid, "got 4294967296 in row 0",
     [](Loss& w) { w.target(0) = std::int64_t{1} << 32; }},
    {"loss missing", "loss.forward", invalid, "loss: expected [1] f32 cpu, got not given", [](Loss& w) { w.forward.loss = {}; }},
    {"loss in f64 beside f32", "loss.forward", mismatch, "loss: expected [1] f32 cpu, got [1] f64 cpu",
     [](Loss& w) { w.forward.loss.dtype = DType::f64; }},
    {"count in i64", "loss.forward", mismatch, "count: expected [1] f32 cpu, got [1] i64 cpu",
     [](Loss& w) { w.forward.count.dtype = DType::i64; }},
    {"count over loss", "loss.forward", invalid, "loss: expected memory apart from count, got an overlap",
     [](Loss& w) { w.forward.count = w.loss; }},
    {"status of two words", "loss.forward", invalid, "status: expected [1] i32 cpu, got [2] i32 cpu",
     [](Loss& w) { w.forward.status = w.pool.tensor(DType::i32, {2}); }},
    {"status over loss", "loss.forward", invalid, "loss: expected memory apart from status, got an overlap",
     [](Loss& w) { w.forward.status = TensorView(w.loss.data, DType::i32, {1}); }},
    {"workspace too short", "loss.forward", ErrorCode::out_of_memory, "workspace: expected at least",
     [](Loss& w) { --w.workspace.bytes; }},
    {"workspace misaligned", "loss.forward", invalid, "workspace: expected an address that is a multiple of 64 bytes",
     [](Loss& w) { w.workspace.data = static_cast<std::byte*>(w.workspace.data) + 8; }},
    {"stream of another device", "loss.forward", mismatch, "stream: expected one of cpu, got one of cuda:0",
     [](Loss& w) { w.stream.device = Device::cuda(0); }},
    {"plan without training", "loss.forward_backward", invalid,
     "training: expected a plan that was made with training, got one without",
     [](Loss& w) { w.plan = LossPlan({.inputs = 6, .classes = 7}, {5}); }},
    {"scale of two numbers", "loss.forward_backward", invalid, "scale: expected [1] f32 cpu, got [2] f32 cpu",
     [](Loss& w) { w.backward.scale = w.pool.tensor(DType::f32, {2}); }},
    {"dx with other rows", "loss.forward_backward", invalid, "dx: expected [5, 6] f32 cpu, got [4, 6] f32 cpu",
     [](Loss& w) { w.backward.dx.shape[0] = 4; }},
    {"dx over x", "loss.forward_backward", invalid, "dx: expected memory apart from x, got an overlap",
     [](Loss& w) { w.backward.dx.data = w.x.data; }},
    {"dx repeated", "loss.forward_backward", invalid, "dx: expected elements that do not overlap, got stride 0 in dimension 0",
     [](Loss& w) { w.backward.dx.strides[0] = 0; }},
    {"dweight elsewhere", "loss.forward_backward", mismatch, "dweight: expected [7, 6] f32 cpu, got [7, 6] f32 cuda:0",
     [](Loss& w) { w.backward.dweight.device = Device::cuda(0); }},
    {"dweight over weight", "loss.forward_backward", invalid, "dweight: expected memory apart from weight, got an overlap",
     [](Loss& w) { w.backward.dweight.data = w.weight.data; }},
    {"status over dx", "loss.forward_backward", invalid, "status: expected memory apart from dx, got an overlap",
     [](Loss& w) { w.backward.forward.status = TensorView(w.backward.dx.data, DType::i32, {1}); }},
    {"dbias in f16", "loss.forward_backward", mismatch, "dbias: expected [7] f32 cpu, got [7] f16 cpu",
     [](Loss& w) { w.backward.dbias.dtype = DType::f16; }},
};

TEST(BadCalls, Softmax_sanitize) { test::expect_bad_calls<Softmax>(softmaxes); }
TEST(BadCalls, Embedding_sanitize) { test::expect_bad_calls<Embedding>(embeddings); }
TEST(BadCalls, Loss_sanitize) { test::expect_bad_calls<Loss>(losses); }

}  // namespace
}  // namespace everglow
