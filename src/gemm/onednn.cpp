// The one file that knows oneDNN: matmul primitives, made at the first product of a shape and kept in a bounded cache behind a
// lock. oneDNN 2.x builds a primitive descriptor from an operation descriptor, 3.x without one.
#include "gemm/onednn.hpp"

#include <everglow/error.hpp>

#include "core/text.hpp"
#include "gemm/packed.hpp"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <atomic>
#include <compare>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
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
  DType type, c_type, bias_type;
  GemmActivation activation;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  dnnl::matmul matmul;
  memory::desc a, b, bias, c, scratchpad;
  bool declined = false;  // oneDNN has plain loops alone for it, or a kernel that reads neighbours
  std::uint64_t last_use = 0;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::f16 ? memory::data_type::f16 : dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

struct Rows {
  std::int64_t stride;
  bool transposed = false;
};
memory::desc matrix(DType dtype, std::int64_t rows, std::int64_t columns, const Rows& how) {
  const memory::dims strides = how.transposed ? memory::dims{1, how.stride} : memory::dims{how.stride, 1};
  return {{rows, columns}, type_of(dtype), strides};
}

/// Its implementations are named, such as brg:avx512_core_amx_bf16, jit:avx2, gemm:jit and ref:any. The AMX kernels of oneDNN 3.x
/// multiply the rest of a 16-bit K past 32 by zeros of B, whatever the neighbouring rows of A hold there: a NaN spreads
/// (https://github.com/uxlfoundation/oneDNN/issues/5717).
bool is_declined(const dnnl::matmul::primitive_desc& primitive, const Key& key) {
  constexpr std::int64_t tile_depth = 32;  // 16-bit elements in a row of an AMX tile
  const std::string_view name = primitive.impl_info_str();
  const bool rest = key.type != DType::f32 && key.k > tile_depth && key.k % tile_depth != 0;
  return name.find("ref") != std::string_view::npos || (rest && name.find("amx") != std::string_view::npos);
}

void append_activation(dnnl::post_ops& after, GemmActivation activation) {
  const dnnl::algorithm algorithm = activation == GemmActivation::gelu_tanh  ? dnnl::algorithm::eltwise_gelu_tanh
                                    : activation == GemmActivation::gelu_erf ? dnnl::algorithm::eltwise_gelu_erf
                                                                             : dnnl::algorithm::eltwise_swish;
  const float slope = 1;  // of silu: z / (1 + exp(-slope z))
#if DNNL_VERSION_MAJOR >= 3
  after.append_eltwise(algorithm, slope, 0);
#else
  after.append_eltwise(1, algorithm, slope, 0);
#endif
}

/// What the two versions of the interface agree on. Throws dnnl::error where oneDNN has no implementation at all.
dnnl::matmul::primitive_desc describe(const Primitive& p, bool bias, const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return bias ? dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.bias, p.c, attributes)
              : dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.c, attributes);
#else
  const auto operation = bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
  return {operation, attributes, engine()};
#endif
}

Primitive make(const Key& key) {
  Primitive out;
  out.a = matrix(key.type, key.m, key.k, {key.lda, key.transpose_a});
  out.b = matrix(key.type, key.k, key.n, {key.ldb, key.transpose_b});
  out.c = matrix(key.c_type, key.m, key.n, {key.ldc});
  if (key.bias) out.bias = matrix(key.bias_type, 1, key.n, {key.n});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (key.accumulate) after.append_sum(1.0F);
  if (key.activation != GemmActivation::none) append_activation(after, key.activation);
  attributes.set_post_ops(after);
  try {
    const dnnl::matmul::primitive_desc primitive = describe(out, key.bias, attributes);
    out.declined = is_declined(primitive, key);
    if (out.declined) return out;
    out.scratchpad = primitive.scratchpad_desc();
    out.matmul = dnnl::matmul(primitive);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    out.declined = true;
  }
  return out;
}

std::atomic<std::uint64_t> primitives_made = 0;

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
    ++primitives_made;
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

memory view(const memory::desc& description, const void* data) { return {description, engine(), const_cast<void*>(data)}; }

Key key_of(const Gemm& p, int threads) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .lda = p.lda,
          .ldb = p.ldb,
          .ldc = p.ldc,
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .bias = p.bias != nullptr,
          .accumulate = p.accumulate,
          .type = p.a_type,
          .c_type = p.c_type,
          .bias_type = p.bias_type,
          .activation = onednn_activates(p) ? p.finish.activation : GemmActivation::none,
          .threads = threads};
}

bool execute(const Gemm& p, int threads) {
  const ThreadCount guard(threads);
  const Primitive primitive = primitive_of(key_of(p, threads));
  if (primitive.declined || primitive.scratchpad.get_size() > most_scratch) return false;
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

bool onednn_multiplies(DType dtype) {
  const auto ask = [](DType type) {
    constexpr std::int64_t size = 64;
    try {
      return !make({.m = size,
                    .n = size,
                    .k = size,
                    .lda = size,
                    .ldb = size,
                    .ldc = size,
                    .transpose_a = false,
                    .transpose_b = true,
                    .bias = false,
                    .accumulate = false,
                    .type = type,
                    .c_type = type,
                    .bias_type = type,
                    .activation = GemmActivation::none,
                    .threads = 1})
                  .declined;
    } catch (const dnnl::error&) {
      return false;
    }
  };
  static const bool f32 = ask(DType::f32), f16 = ask(DType::f16), bf16 = ask(DType::bf16);
  return dtype == DType::f32 ? f32 : dtype == DType::f16 ? f16 : dtype == DType::bf16 && bf16;
}

bool onednn_accepts(const Gemm& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const bool sizes = p.m > 0 && p.n > 0 && p.k > 0 && p.m <= most && p.n <= most && p.k <= most;
  const std::int64_t columns_a = p.transpose_a ? p.m : p.k, columns_b = p.transpose_b ? p.k : p.n;
  // A matrix of one stored column with gaps between its elements: oneDNN 3.7 takes it for a dense vector.
  const bool gaps = (columns_a == 1 && p.lda > 1) || (columns_b == 1 && p.ldb > 1) || (p.n == 1 && p.ldc > 1);
  const bool steps = p.step_a == 1 && p.step_b == 1 && p.step_c == 1 && p.step_bias == 1;
  const bool types = p.a_type == p.b_type && (p.c_type == DType::f32 || p.c_type == p.a_type) &&
                     (p.bias == nullptr || p.bias_type == DType::f32 || p.bias_type == p.a_type);
  return sizes && !gaps && steps && types && !p.packed_b && p.lda >= columns_a && p.ldb >= columns_b && p.ldc >= p.n &&
         onednn_multiplies(p.a_type);
}

/// Not relu: oneDNN's makes 0 of NaN.
bool onednn_activates(const Gemm& p) { return p.finish.replaces && p.finish.activation > GemmActivation::relu; }

namespace {

/// f(), with oneDNN's faults as ours.
template <class F>
auto with_errors(const Gemm& p, const F& f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    const ErrorCode code = error.status == dnnl_out_of_memory ? ErrorCode::out_of_memory : ErrorCode::device;
    throw Error(code, "gemm",
                text("expected oneDNN to multiply [", p.m, ", ", p.k, "] by [", p.k, ", ", p.n, "], got: ", error.what()));
  }
}

}  // namespace

bool onednn_gemm(const Gemm& p, int threads) {
  return with_errors(p, [&] { return execute(p, threads); });
}

void onednn_prepare(const Gemm& p, int threads) {
  with_errors(p, [&] {
    const ThreadCount guard(threads);
    primitive_of(key_of(p, threads));
  });
}

std::uint64_t onednn_primitives_made() { return primitives_made; }

}  // namespace everglow
