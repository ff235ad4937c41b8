// Scaled dot-product attention: o = softmax(mask(softcap(scale q kᵀ) + bias)) v, forward and backward, without the score matrix
// in memory where a tiled row runs (FlashAttention-2, Dao, arXiv 2307.08691).
#pragma once

#include <everglow/plan.hpp>

#include <memory>

namespace everglow {

/// Which diagonal a causal mask follows where queries and keys differ in number.
enum class CausalAlignment : std::uint8_t { bottom_right, top_left };

struct AttentionDescription {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;  ///< 0: as heads; else a divisor of heads (grouped queries)
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  ///< 0: as head_dim
  float scale = 0;             ///< 0: 1/sqrt(head_dim), or 1 where that is 0
  bool causal = false;
  CausalAlignment alignment = CausalAlignment::bottom_right;
  std::int64_t window_left = -1;   ///< keys to the left of the diagonal that are seen; -1: all
  std::int64_t window_right = -1;  ///< to the right; -1: all
  float softcap = 0;               ///< 0: none; else s -> softcap tanh(s / softcap)
  float dropout = 0;               ///< of probabilities, by the index in the run's [B, Hq, Sq, Sk] (packed: the plan's)
  bool alibi = false;              ///< runs bring alibi_slopes
  bool bias = false;               ///< runs bring an additive bias
  bool query_lengths = false;      ///< runs bring query_lengths
  bool key_lengths = false;        ///< runs bring key_lengths
  bool packed = false;             ///< runs bring cu_queries and cu_keys
  DType dtype = DType::f32;
  bool training = false;  ///< backward may be called
};

struct AttentionSizes {
  std::int64_t batch = 0;
  std::int64_t queries = 0;  ///< of one sequence, at most
  std::int64_t keys = 0;
  std::int64_t total_queries = 0, total_keys = 0;  ///< packed batches only
};

/// The tensors of a batch whose sequences have rows of their own. A packed batch has the rows of its sequences one after the other:
/// q [total_queries, Hq, D], k and v [total_keys, Hk, D or Dv], o as q with Dv, lse [Hq, total_queries], gradients likewise; row
/// cu_queries[b] of q is the first of sequence b and row cu_keys[b] of k its first key (the first entries are 0, the last ones the
/// rows of q and of k; both never decrease). Its bias is [1|B, 1|Hq, queries, keys] in the plan's sizes: sequence b uses the rows
/// and columns it has, and dbias is 0 in the others.
struct AttentionForward {
  ConstTensorView q{};  // [B, Sq, Hq, D], any strides whose last is 1
  ConstTensorView k{};  // [B, Sk, Hk, D]
  ConstTensorView v{};  // [B, Sk, Hk, Dv]
  TensorView o{};       // [B, Sq, Hq, Dv]
  TensorView lse{};     // f32 [B, Hq, Sq]: log of the sum of exponentials; -inf for a row with no key; needed when training
  ConstTensorView query_lengths{};          // i32 [B], 0 ... Sq; output rows past a length are 0
  ConstTensorView key_lengths{};            // i32 [B], 0 ... Sk
  ConstTensorView cu_queries{}, cu_keys{};  // i32 [B+1]
  ConstTensorView alibi_slopes{};           // f32 [Hq] or [B, Hq]
  ConstTensorView bias{};                   // [1|B, 1|Hq, Sq, Sk], of the layer's dtype
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  ConstTensorView dropout_state{};  // i64 [2]: seed and offset in the layer's memory, in place of the two numbers
  TensorView status{};              // u32 [1] in an i32 view; a run only ORs into it (check_status)
};

struct AttentionBackward {
  ConstTensorView q{}, k{}, v{}, o{}, lse{};
  ConstTensorView query_lengths{}, key_lengths{}, cu_queries{}, cu_keys{}, alibi_slopes{}, bias{};
  ConstTensorView d_o{};        // [B, Sq, Hq, Dv]; not given: zero
  ConstTensorView dlse{};       // f32 [B, Hq, Sq]; not given: zero
  TensorView dq{}, dk{}, dv{};  // as q, k, v, of their dtype; not given: not computed
  TensorView dbias{};           // as bias, summed over what that is broadcast to; overwritten
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  ConstTensorView dropout_state{};  // i64 [2]: seed and offset in the layer's memory, in place of the two numbers
  TensorView status{};
};

/// Plan of an attention layer. Any size may be 0: with head_dim 0 every score is 0 before bias and ALiBi. A row with no key gives
/// output 0 and LSE -inf. LSE and its gradient are f32, beside f64 tensors f64.
/// What is hidden takes no part: where causal, the window, a length or a bias of -inf hides a key from a query, the query's results
/// and gradients do not depend on the key and its value, nor the key's gradients on the query, even if these hold NaN or Inf. A key
/// that no query sees has gradients 0. What a query does see goes the way of arithmetic: a NaN there makes its results NaN.
/// What is written must be apart from everything else of the call; heads that interleave in one matrix are. On a CPU a length out
/// of range throws before anything is written. Without dropout the seed and offset must be 0 and
/// their view absent. On a GPU a bias of -inf hides what is not finite in cuda.attention_standard alone; in the flash rows it hides
/// finite keys and values, and a NaN or Inf there reaches the result.
class EVERGLOW_API AttentionPlan {
 public:
  AttentionPlan(const AttentionDescription& description, const AttentionSizes& sizes,
                const DeviceDescription& device = Device::cpu(), const PlanOptions& options = {});
  const Explanation& explain() const;  ///< products, algorithms, times and advice are made at the first call
  std::size_t workspace_bytes() const noexcept;
  std::uint64_t dropout_counters() const noexcept;
  void forward(const AttentionForward& tensors, const Workspace& workspace, const Stream& stream = {}) const;
  void backward(const AttentionBackward& tensors, const Workspace& workspace, const Stream& stream = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace everglow
