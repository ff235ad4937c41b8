// The one file that knows oneDNN: f32 matmul primitives, made at the first product of a shape and kept in a bounded cache behind a
// lock. oneDNN 2.x builds a primitive descriptor from an operation descriptor, 3.x without one.
#include "gemm/onednn.hpp"

#include <everglow/error.hpp>

#include "core/text.hpp"
#include "gemm/packed.hpp"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>

namespace everglow {
namespace {

using dnnl::memory;

constexpr std::size_t most_primitives = 256;
constexpr std::size_t most_scratch = std::size_t{64} << 20;  // bytes that a thread keeps for oneDNN

/// Everything a primitive was made for. The thread count is part of it: oneDNN cuts the work when it makes the primitive.
struct Key {
  std::int64_t m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b, bias, accumulate;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  dnnl::matmul matmul;
  memory::desc a, b, bias, c, scratchpad;
  std::uint64_t last_use = 0;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
  return {{rows, columns}, memory::data_type::f32, strides};
}

Primitive make(const Key& key) {
  Primitive out;
  out.a = matrix(key.m, key.k, key.lda, key.transpose_a);
  out.b = matrix(key.k, key.n, key.ldb, key.transpose_b);
  out.c = matrix(key.m, key.n, key.ldc, false);
  if (key.bias) out.bias = matrix(1, key.n, key.n, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const auto primitive = key.bias ? dnnl::matmul::primitive_desc(engine(), out.a, out.b, out.bias, out.c, attributes)
                                  : dnnl::matmul::primitive_desc(engine(), out.a, out.b, out.c, attributes);
#else
  const auto operation = key.bias ? dnnl::matmul::desc(out.a, out.b, out.bias, out.c) : dnnl::matmul::desc(out.a, out.b, out.c);
  const dnnl::matmul::primitive_desc primitive(operation, attributes, engine());
#endif
  out.scratchpad = primitive.scratchpad_desc();
  out.matmul = dnnl::matmul(primitive);
  return out;
}

/// The primitive of a key, made at most once while it is kept; the one that was not used longest makes room.
Primitive primitive_of(const Key& key) {
  static std::mutex lock;
  static std::map<Key, Primitive> kept;
  static std::uint64_t uses = 0;
  const std::scoped_lock guard(lock);
  auto found = kept.find(key);
  if (found == kept.end()) {
    if (kept.size() >= most_primitives)
      kept.erase(std::min_element(kept.begin(), kept.end(),
                                  [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
    found = kept.emplace(key, make(key)).first;
  }
  found->second.last_use = ++uses;
  return found->second;
}

/// oneDNN takes OpenMP's thread count of the calling thread.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

memory view(const memory::desc& description, const float* data) { return {description, engine(), const_cast<float*>(data)}; }

bool execute(const Gemm& p, int threads) {
  const ThreadCount guard(threads);
  const Primitive primitive = primitive_of({.m = p.m,
                                            .n = p.n,
                                            .k = p.k,
                                            .lda = p.lda,
                                            .ldb = p.ldb,
                                            .ldc = p.ldc,
                                            .transpose_a = p.transpose_a,
                                            .transpose_b = p.transpose_b,
                                            .bias = p.bias != nullptr,
                                            .accumulate = p.accumulate,
                                            .threads = threads});
  if (primitive.scratchpad.get_size() > most_scratch) return false;
  const auto scratch = static_cast<std::int64_t>((primitive.scratchpad.get_size() + sizeof(float) - 1) / sizeof(float));
  const float* memory_of_scratch = thread_scratch(ScratchSlot::library, scratch);
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, view(primitive.a, p.a)},
                                            {DNNL_ARG_WEIGHTS, view(primitive.b, p.b)},
                                            {DNNL_ARG_DST, view(primitive.c, p.c)},
                                            {DNNL_ARG_SCRATCHPAD, view(primitive.scratchpad, memory_of_scratch)}};
  if (p.bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, view(primitive.bias, p.bias));
  static thread_local dnnl::stream stream(engine());
  primitive.matmul.execute(stream, arguments);
  stream.wait();
  return true;
}

}  // namespace

bool has_onednn() { return true; }

bool onednn_accepts(const Gemm& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const bool sizes = p.m > 0 && p.n > 0 && p.k > 0 && p.m <= most && p.n <= most && p.k <= most;
  const std::int64_t columns_a = p.transpose_a ? p.m : p.k, columns_b = p.transpose_b ? p.k : p.n;
  // A matrix of one stored column with gaps between its elements: oneDNN 3.7 takes it for a dense vector.
  const bool gaps = (columns_a == 1 && p.lda > 1) || (columns_b == 1 && p.ldb > 1) || (p.n == 1 && p.ldc > 1);
  return sizes && !gaps && p.lda >= columns_a && p.ldb >= columns_b && p.ldc >= p.n;
}

bool onednn_gemm(const Gemm& p, int threads) {
  try {
    return execute(p, threads);
  } catch (const dnnl::error& error) {
    const ErrorCode code = error.status == dnnl_out_of_memory ? ErrorCode::out_of_memory : ErrorCode::device;
    throw Error(code, "gemm",
                text("expected oneDNN to multiply [", p.m, ", ", p.k, "] by [", p.k, ", ", p.n, "], got: ", error.what()));
  }
}

}  // namespace everglow
