// Classifier and cross entropy on a card, in blocks of rows: the logits (a product), in place their gradients, and from those dx,
// dW and db. Logits are f32 whatever x and W are stored in; their gradients are in the type of x, as the products read them; sums
// are f32 and rounded once. Rows that are ignored cost as much as others, since their number is known on the card alone, but what
// they hold never matters: their x is read as zeros.
#include "core/arena.hpp"
#include "cuda/common/device.hpp"
#include "cuda/common/odd_product.hpp"
#include "cuda/common/linear_layout.hpp"
#include "cuda/common/loss_kernels.hpp"
#include "cuda/common/rows.hpp"

#include <algorithm>

namespace everglow::cuda {
namespace {

constexpr std::int64_t line = 64;  // bytes that the rows of our own matrices are multiples of

/// f32 elements between rows of logits.
std::int64_t logit_stride(const LossQuery& q) { return (q.description.classes + 63) / 64 * 64; }

/// Elements between rows of x and dx as products read and write them.
std::int64_t input_stride(const LossQuery& q) {
  const auto size = static_cast<std::int64_t>(size_of(q.description.dtype));
  return (q.description.inputs * size + line - 1) / line * line / size;
}

/// Rows of a block. Each block reads and writes dW once, 8 bytes an element beside 6 flops a row: 2048 rows are 1500 flops a byte,
/// far above what a card's memory asks for. The number depends on the description alone, so that blocks begin at the same rows
/// whatever the plan's size is.
std::int64_t block_rows(const LossQuery& q) {
  constexpr std::int64_t budget = std::int64_t{256} << 20;
  const std::int64_t rows = budget / static_cast<std::int64_t>(sizeof(float)) / std::max<std::int64_t>(logit_stride(q), 1);
  return std::clamp<std::int64_t>(rows, 256, 8192) / 128 * 128;
}

struct Scratch {
  void* library = nullptr;   // null: products of our own
  double* factor = nullptr;  // [1], of every gradient
  double* losses = nullptr;  // [rows]
  float* logits = nullptr;   // [block, logit_stride]
  std::byte* x = nullptr;    // [block, input_stride]
  std::byte* dx = nullptr;   // [block, input_stride]
  float* sums = nullptr;     // of sum_rows
  float* dweight = nullptr;  // [classes, inputs], sums over several blocks for a gradient of 16 bits
  float* dbias = nullptr;    // [classes], likewise
};

template <bool library>
Scratch scratch_of(const LossQuery& q, Arena& arena) {
  const LossDescription& d = q.description;
  const std::int64_t rows = std::min(block_rows(q), q.sizes.rows);
  const std::int64_t input_bytes = rows * input_stride(q) * static_cast<std::int64_t>(size_of(d.dtype));
  Scratch s;
  if constexpr (library) s.library = take_library_scratch(arena);
  s.factor = arena.take<double>(1);
  s.losses = arena.take<double>(q.sizes.rows);
  s.logits = arena.take<float>(rows * logit_stride(q));
  s.x = arena.take<std::byte>(input_bytes);
  if (!d.training) return s;
  s.dx = arena.take<std::byte>(input_bytes);
  s.sums = arena.take<float>(sum_rows_scratch(rows, d.classes));
  if (d.dtype == DType::f32 || q.sizes.rows <= rows) return s;
  s.dweight = arena.take<float>(d.classes * d.inputs);
  s.dbias = arena.take<float>(d.classes);
  return s;
}

/// The classifier as a linear layer, which is what the library's products are asked for.
LinearQuery linear_query(const LossQuery& q) {
  const LossDescription& d = q.description;
  return {.description = {.inputs = d.inputs, .outputs = d.classes, .dtype = d.dtype, .training = d.training},
          .sizes = {q.sizes.rows},
          .device = q.device,
          .options = q.options,
          .threads = q.threads,
          .isa = q.isa};
}

class Run {
 public:
  Run(const LossQuery& q, const LossForward& t, const Scratch& s, cudaStream_t stream)
      : q_(q), t_(t), s_(s), stream_(stream), linear_(linear_query(q)) {
    targets_ = {.list = t.targets, .classes = q.description.classes, .ignore_index = q.description.ignore_index};
  }

  /// `b` is null where only the loss is wanted.
  void operator()(const LossBackward* b) const {
    const bool gradients = b != nullptr && (b->dx.given() || b->dweight.given() || b->dbias.given());
    count_targets({.targets = targets_,
                   .scale = b != nullptr ? b->scale : ConstTensorView(),
                   .divide_by_count = b != nullptr && b->divide_by_count,
                   .count = t_.count,
                   .status = t_.status,
                   .factor = s_.factor},
                  stream_);
    const std::int64_t rows = t_.x.size(0), most = block_rows(q_);
    std::int64_t begin = 0;
    do {  // once for no rows too: gradients that are sums over none are written
      block(b, gradients, begin, std::min(most, rows - begin));
      begin += most;
    } while (begin < rows);
    if (gradients) round_gradients(*b);
    sum_losses(s_.losses, rows, t_.loss, stream_);
    check_launch("loss");
  }

 private:
  std::int64_t inputs() const { return q_.description.inputs; }
  std::int64_t classes() const { return q_.description.classes; }
  Matrix room(void* data, std::int64_t rows) const { return {data, rows, inputs(), input_stride(q_), 1, q_.description.dtype}; }
  Matrix weight() const { return matrix_of(t_.weight); }

  void product(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) const {
    if (s_.library != nullptr) return multiply({linear_, stream_, s_.library}, a, b, c, accumulate);
    multiply_plain({.a = a, .b = b, .bias = {}, .c = c, .accumulate = accumulate}, stream_);
  }

  void block(const LossBackward* b, bool gradients, std::int64_t first, std::int64_t rows) const {
    const Matrix x = room(s_.x, rows);
    copy_counted_rows(targets_, first, matrix_of(t_.x).part_of_rows(first, rows), x, stream_);
    const LossRows l{.targets = targets_,
                     .first = first,
                     .logits = {s_.logits, rows, classes(), logit_stride(q_), 1, DType::f32},
                     .bias = t_.bias,
                     .dtype = q_.description.dtype,
                     .smoothing = q_.description.smoothing,
                     .factor = gradients ? s_.factor : nullptr,
                     .losses = s_.losses + first};
    product(x, weight().transposed(), l.logits, false);
    loss_of_rows(l, stream_);
    if (!gradients) return;
    const Matrix dlogits = gradients_of(l);
    if (b->dx.given()) {
      const Matrix dx = room(s_.dx, rows);
      product(dlogits, weight(), dx, false);
      copy_counted_rows(targets_, first, dx, matrix_of(b->dx).part_of_rows(first, rows), stream_);
    }
    if (b->dweight.given()) {
      const bool direct = is_direct(b->dweight);
      const Matrix to = direct ? matrix_of(b->dweight) : sums_of_weight();
      product(dlogits.transposed(), x, to, first > 0 || (direct && b->accumulate));
    }
    if (b->dbias.given()) {
      const bool direct = is_direct(b->dbias);
      sum_rows(dlogits, direct ? matrix_of(b->dbias) : sums_of_bias(), first > 0 || (direct && b->accumulate), s_.sums, stream_);
    }
  }

  /// Whether the blocks add into a gradient itself; one of 16 bits would be rounded with each.
  bool is_direct(const TensorView& gradient) const { return gradient.dtype == DType::f32 || s_.dweight == nullptr; }
  Matrix sums_of_weight() const { return {s_.dweight, classes(), inputs(), inputs(), 1, DType::f32}; }
  Matrix sums_of_bias() const { return {s_.dbias, 1, classes(), classes(), 1, DType::f32}; }

  void round_gradients(const LossBackward& b) const {
    if (b.dweight.given() && !is_direct(b.dweight)) copy_matrix(sums_of_weight(), matrix_of(b.dweight), b.accumulate, stream_);
    if (b.dbias.given() && !is_direct(b.dbias)) copy_matrix(sums_of_bias(), matrix_of(b.dbias), b.accumulate, stream_);
  }

  const LossQuery& q_;
  const LossForward& t_;
  const Scratch s_;
  cudaStream_t stream_;
  LinearQuery linear_;
  LossTargets targets_;
};

template <bool library>
void forward(const LossQuery& query, const LossForward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  Run(query, t, scratch_of<library>(query, arena), stream_of(stream))(nullptr);
}

template <bool library>
void forward_backward(const LossQuery& query, const LossBackward& t, void* workspace, const Stream& stream) {
  const CurrentCard current(query.device.device.index);
  Arena arena(workspace);
  Run(query, t.forward, scratch_of<library>(query, arena), stream_of(stream))(&t);
}

Verdict accepts(const LossQuery& query) {
  const Verdict plain = accept_storage_on_card(query);
  if (!plain.accepted) return plain;
  if (query.options.deterministic) return decline("cuBLASLt may add in another order for another number of rows");
  return accept_library(query.device);
}

}  // namespace

const LossRow loss_cublaslt{.name = "cublaslt.loss",
                            .accepts = accepts,
                            .footprint = arena_footprint<scratch_of<true>, LossQuery>,
                            .forward = forward<true>,
                            .forward_backward = forward_backward<true>};

const LossRow loss{.name = "cuda.loss",
                   .accepts = accept_storage_on_card<LossQuery>,
                   .footprint = arena_footprint<scratch_of<false>, LossQuery>,
                   .forward = forward<false>,
                   .forward_backward = forward_backward<false>};

}  // namespace everglow::cuda
