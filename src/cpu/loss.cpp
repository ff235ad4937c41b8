// Classifier and cross entropy: for each block of rows the logits (a GEMM), in
// place their gradients (one visit of each row while it is in the first-level
// cache), and from those dx, dW and db. Rows that are ignored are left out of
// the blocks, so that padding costs nothing. Logits and their gradients are
// f32, whatever x and W are stored in; gradients are summed in f32 and rounded
// once.
#include "cpu/isa/loss.hpp"
#include "core/indices.hpp"
#include "core/mutant.hpp"
#include "core/parallel.hpp"
#include "core/storage.hpp"
#include "cpu/rows.hpp"
#include "gemm/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace everglow::cpu {
namespace {

/// Elements between rows of logits: whole cache lines, and no multiple of 4096
/// bytes, which would put a column in one cache set.
std::int64_t logit_stride(const LossQuery& q) {
  const std::int64_t stride = (q.description.classes + 15) / 16 * 16;
  return stride % 1024 == 0 ? stride + 16 : stride;
}

/// Rows of a block. Each block reads W twice and reads and writes dW, 16 bytes
/// for each of its elements, against 6 flops a row: 256 rows make that 96 flops
/// a byte, far above what memory asks for. More rows would only push the
/// logits, which are written and read four times, out of the caches: 8 MiB of
/// them are a share of a usual last-level cache. The number depends on the
/// description alone, so that blocks begin at the same rows whatever the plan's
/// size and threads are.
std::int64_t block_rows(const LossQuery& q) {
  constexpr std::int64_t budget = std::int64_t{8} << 20;
  const std::int64_t rows = budget / static_cast<std::int64_t>(sizeof(float)) / std::max<std::int64_t>(logit_stride(q), 1);
  return std::clamp<std::int64_t>(rows, 64, 256) / loss_chunk * loss_chunk;
}

struct Scratch {
  std::int64_t* counted = nullptr;  // [rows], the rows that are not ignored
  double* losses = nullptr;         // [block], of each row
  float* logits = nullptr;          // [block, logit_stride]
  float* sums = nullptr;            // [chunks of a block, logit_stride], column sums
  std::byte* x = nullptr;           // [block, inputs], where the rows of a block do not
                                    // follow one another
  std::byte* dx = nullptr;          // [block, inputs], likewise
  float* dweight = nullptr;         // [classes, inputs], sums over several blocks for a
                                    // gradient of 16 bits
  float* dbias = nullptr;           // [classes], likewise
};

Scratch scratch_of(const LossQuery& q, Arena& arena) {
  const LossDescription& d = q.description;
  const std::int64_t rows = std::min(block_rows(q), q.sizes.rows), stride = logit_stride(q);
  const auto row_bytes = d.inputs * static_cast<std::int64_t>(size_of(d.dtype));
  const bool narrow = d.dtype != DType::f32;
  Scratch s;
  s.counted = arena.take<std::int64_t>(q.sizes.rows);
  s.losses = arena.take<double>(rows);
  s.logits = arena.take<float>(rows * stride);
  s.x = arena.take<std::byte>(rows * row_bytes);
  if (!d.training) return s;
  s.dx = arena.take<std::byte>(rows * row_bytes);
  s.sums = arena.take<float>((rows + loss_chunk - 1) / loss_chunk * stride);
  if (narrow) s.dbias = arena.take<float>(d.classes);
  if (narrow && q.sizes.rows > rows) s.dweight = arena.take<float>(d.classes * d.inputs);
  return s;
}

/// share · value, where a share of 0 takes nothing of a value that is not
/// finite (a logit may be -inf).
double part_of(double share, double value) { return share == 0 ? 0 : share * value; }

/// Elements between rows; a single row may have any stride.
template <class View>
std::int64_t row_stride(const View& view) {
  return view.size(0) > 1 ? view.strides[0] : view.size(1);
}

class Run {
 public:
  Run(const LossQuery& q, const LossForward& t, void* workspace)
      : q_(q),
        t_(t),
        kernels_(select(q.isa, portable::loss_kernels, avx2::loss_kernels, avx512::loss_kernels)),
        context_{.threads = q.threads, .isa = q.isa, .library = !q.options.deterministic},
        storage_(q.description.dtype, q.isa),
        stride_(logit_stride(q)) {
    Arena arena(workspace);
    s_ = scratch_of(q, arena);
    for (std::int64_t n = 0; n < t.x.size(0); ++n)
      if (read_index(t.targets, n) != q.description.ignore_index) s_.counted[count_++] = n;
  }

  /// `b` is null where only the loss is wanted.
  void operator()(const LossBackward* b) {
    const bool gradients = b != nullptr && (b->dx.given() || b->dweight.given() || b->dbias.given());
    if (gradients) prepare(*b);
    double total = 0;
    for (std::int64_t begin = 0; begin < count_; begin += block_rows(q_)) {
      const Block block = make_block(begin, std::min(block_rows(q_), count_ - begin));
      make_logits(block);
      const bool sums = gradients && b->dbias.given();
      parallel_tasks(q_.threads, chunks_of(block), [&](std::int64_t chunk) { chunk_of_rows(block, chunk, gradients, sums); });
      for (std::int64_t r = 0; r < block.rows; ++r) total += s_.losses[r];
      if (gradients) block_gradients(*b, block);
    }
    if (gradients && count_ > 0) round_gradients(*b);
    *static_cast<float*>(t_.loss.data) = static_cast<float>(total);
    if (t_.count.given()) *static_cast<float*>(t_.count.data) = static_cast<float>(count_);
  }

 private:
  struct Block {
    std::int64_t begin = 0, rows = 0;  // of the counted rows
    bool together = false;             // its rows follow one another in x
    const std::byte* x = nullptr;
    std::int64_t x_stride = 0;
  };

  std::int64_t inputs() const { return q_.description.inputs; }
  std::int64_t classes() const { return q_.description.classes; }
  const std::byte* x_row(std::int64_t row) const { return storage_.at(t_.x.data, row * t_.x.strides[0]); }
  std::byte* dx_row(const LossBackward& b, std::int64_t row) const { return storage_.at(b.dx.data, row * b.dx.strides[0]); }
  std::int64_t chunks_of(const Block& block) const { return (block.rows + loss_chunk - 1) / loss_chunk; }

  DType dtype() const { return q_.description.dtype; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(inputs()) * size_of(dtype()); }

  Block make_block(std::int64_t begin, std::int64_t rows) const {
    Block block{.begin = begin, .rows = rows};
    block.together = s_.counted[begin + rows - 1] - s_.counted[begin] == rows - 1;
    if (block.together && (rows == 1 || t_.x.strides[0] >= inputs())) {
      block.x = x_row(s_.counted[begin]);
      block.x_stride = rows == 1 ? inputs() : t_.x.strides[0];
      return block;
    }
    for (std::int64_t r = 0; r < rows && inputs() > 0; ++r)
      std::memcpy(storage_.at(static_cast<void*>(s_.x), r * inputs()), x_row(s_.counted[begin + r]), row_bytes());
    block.x = s_.x;
    block.x_stride = inputs();
    return block;
  }

  void make_logits(const Block& block) const {
    gemm({.transpose_b = true,
          .m = block.rows,
          .n = classes(),
          .k = inputs(),
          .a = block.x,
          .lda = block.x_stride,
          .b = t_.weight.data,
          .ldb = row_stride(t_.weight),
          .c = s_.logits,
          .ldc = stride_,
          .bias = t_.bias.given() ? t_.bias.data : nullptr,
          .a_type = dtype(),
          .b_type = dtype(),
          .bias_type = dtype()},
         context_);
  }

  /// The losses of a few rows and, where wanted, their logits as gradients.
  void chunk_of_rows(const Block& block, std::int64_t chunk, bool gradients, bool sums) const {
    const double smoothing = q_.description.smoothing;
    const std::int64_t first = chunk * loss_chunk;
    LossChunk c{.values = s_.logits + first * stride_,
                .stride = stride_,
                .rows = static_cast<int>(std::min<std::int64_t>(loss_chunk, block.rows - first)),
                .n = classes(),
                .shift = static_cast<float>(factor_ * smoothing / static_cast<double>(classes())),
                .column_sums = sums ? s_.sums + chunk * stride_ : nullptr};
    for (int r = 0; r < c.rows; ++r) {
      float* const z = c.values + r * stride_;
      const std::int64_t target = read_index(t_.targets, s_.counted[block.begin + first + r]);
      const double z_target = z[target];
      const LogitStatistics s = kernels_.exponentials(z, c.n);
      const double log_sum = s.top + std::log(static_cast<double>(s.sum_exponentials));
      s_.losses[first + r] =
          log_sum - part_of(1 - smoothing, z_target) - part_of(smoothing, s.sum / static_cast<double>(classes()));
      c.scales[r] = static_cast<float>(factor_ / s.sum_exponentials);
      z[target] = static_cast<float>(z[target] - flipped("loss.target_sign", (1 - smoothing) * s.sum_exponentials));
    }
    if (gradients) kernels_.gradients(c);
  }

  /// The factor of every gradient, and what no block writes.
  void prepare(const LossBackward& b) {
    const double scale = b.scale.given() ? *static_cast<const float*>(b.scale.data) : 1.0;
    factor_ = b.divide_by_count && !mutant("loss.sum_instead_of_mean")
                  ? scale / static_cast<double>(std::max<std::int64_t>(count_, 1))
                  : scale;
    for (std::int64_t n = 0; n < t_.x.size(0) && b.dx.given() && !mutant("loss.ignored_rows_not_cleared"); ++n)
      if (read_index(t_.targets, n) == q_.description.ignore_index) clear(b.dx, n, inputs());
    if (count_ > 0 || b.accumulate) return;
    for (std::int64_t c = 0; c < classes() && b.dweight.given(); ++c) clear(b.dweight, c, inputs());
    if (b.dbias.given()) clear(b.dbias, 0, classes());
  }

  /// Zeros in every type are zero bytes.
  static void clear(const TensorView& view, std::int64_t row, std::int64_t elements) {
    const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
    const std::int64_t offset = row == 0 ? 0 : row * view.strides[0];
    std::fill_n(static_cast<std::byte*>(view.data) + offset * bytes, elements * bytes, std::byte{0});
  }

  void block_gradients(const LossBackward& b, const Block& block) const {
    if (b.dx.given()) input_gradients(b, block);
    const bool later = block.begin > 0 && !mutant("loss.last_block_alone");
    if (b.dweight.given()) {
      const bool direct = b.dweight.dtype == DType::f32 || s_.dweight == nullptr;
      gemm({.transpose_a = true,
            .m = classes(),
            .n = inputs(),
            .k = block.rows,
            .a = s_.logits,
            .lda = stride_,
            .b = block.x,
            .ldb = block.x_stride,
            .c = direct ? b.dweight.data : s_.dweight,
            .ldc = direct ? row_stride(b.dweight) : inputs(),
            .accumulate = later || (direct && b.accumulate),
            .b_type = dtype(),
            .c_type = direct ? b.dweight.dtype : DType::f32},
           context_);
    }
    if (!b.dbias.given()) return;
    const bool direct = b.dbias.dtype == DType::f32;
    float* const dbias = direct ? static_cast<float*>(b.dbias.data) : s_.dbias;
    parallel_ranges(q_.threads, classes(), 1024, [&](std::int64_t begin, std::int64_t end) {
      kernels_.sum_rows(dbias + begin, s_.sums + begin, stride_, chunks_of(block), end - begin,
                        block.begin > 0 || (direct && b.accumulate));
    });
  }

  void input_gradients(const LossBackward& b, const Block& block) const {
    const bool direct = block.together && (block.rows == 1 || b.dx.strides[0] >= inputs());
    gemm({.m = block.rows,
          .n = inputs(),
          .k = classes(),
          .a = s_.logits,
          .lda = stride_,
          .b = t_.weight.data,
          .ldb = row_stride(t_.weight),
          .c = direct ? dx_row(b, s_.counted[block.begin]) : s_.dx,
          .ldc = direct && block.rows > 1 ? b.dx.strides[0] : inputs(),
          .b_type = dtype(),
          .c_type = dtype()},
         context_);
    for (std::int64_t r = 0; r < block.rows && !direct && inputs() > 0; ++r)
      std::memcpy(dx_row(b, s_.counted[block.begin + r]), storage_.at(static_cast<void*>(s_.dx), r * inputs()), row_bytes());
  }

  /// The sums of all blocks into gradients of 16 bits.
  void round_gradients(const LossBackward& b) const {
    if (b.dweight.given() && b.dweight.dtype != DType::f32 && s_.dweight != nullptr)
      parallel_ranges(q_.threads, classes(), 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t c = begin; c < end; ++c)
          storage_.put(s_.dweight + c * inputs(), storage_.at(b.dweight.data, c == 0 ? 0 : c * b.dweight.strides[0]), inputs(),
                       b.accumulate);
      });
    if (b.dbias.given() && b.dbias.dtype != DType::f32) storage_.put(s_.dbias, b.dbias.data, classes(), b.accumulate);
  }

  const LossQuery& q_;
  const LossForward& t_;
  const LossKernels& kernels_;
  GemmContext context_;
  Storage storage_;
  Scratch s_;
  std::int64_t stride_ = 0, count_ = 0;
  double factor_ = 0;
};

Verdict accepts(const LossQuery& q) { return accept_storage(q.description.dtype); }

}  // namespace

const LossRow loss{
    .name = "cpu.loss",
    .accepts = accepts,
    .footprint = arena_footprint<scratch_of, LossQuery>,
    .forward = [](const LossQuery& q, const LossForward& t, void* workspace, const Stream&) { Run(q, t, workspace)(nullptr); },
    .forward_backward = [](const LossQuery& q, const LossBackward& t, void* workspace,
                           const Stream&) { Run(q, t.forward, workspace)(&t); }};

}  // namespace everglow::cpu
