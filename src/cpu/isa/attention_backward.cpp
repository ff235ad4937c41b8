// FlashAttention-2 backward for one block of queries and a run of keys: scores again, P = exp(S - LSE), dS = P (do·v - delta), then
// the three gradients. dq stays in scratch over all keys; dk and dv are added to in the caller's accumulators.
#include "core/mutant.hpp"
#include "cpu/isa/attention_options.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// delta[queries] = Σ do · o - dlse, by transposed squares: do is in scratch, o is read as it lies.
template <int NV>
void deltas(const FlashBackwardBlock& b, vfloat (&delta)[NV], vfloat (&lse)[NV]) {
  const FlashShape& s = b.shape;
  float gradient[NV * lanes], logarithm[NV * lanes];
  for (int i = 0; i < NV * lanes; ++i) {
    const bool real = i < s.queries;
    gradient[i] = real && b.dlse.data != nullptr ? b.dlse.data[i * b.dlse.stride] : 0.0F;
    logarithm[i] = real ? b.lse.data[i * b.lse.stride] : __builtin_inff();
    // exp(S - inf) = 0: neither a lane without a query nor a query without a key has gradients
    if (logarithm[i] == -__builtin_inff()) logarithm[i] = __builtin_inff();
  }
  for (int v = 0; v < NV; ++v) {
    lse[v] = load(logarithm + v * lanes);
    delta[v] = flipped("attention.lse_gradient", vfloat{} - load(gradient + v * lanes));
    for (std::int64_t column = 0; column < s.value_dim && b.d_o.data != nullptr; column += lanes) {
      vfloat square[lanes];
      with_rows(b.o, [&](const auto& o) { load_square(square, o, v * lanes, s.queries, column, s.value_dim); });
      transpose(square);
      const int kept = static_cast<int>(s.value_dim - column < lanes ? s.value_dim - column : lanes);
      for (int i = 0; i < kept; ++i)
        delta[v] += dropped("attention.delta", square[i]) * load(b.scratch.d_o + (column + i) * NV * lanes + v * lanes);
    }
  }
}

/// P (after dropout) and dS of one key block, from scores in p and do·v in ds; with a bias its gradient takes the bias's place.
template <int NV>
void score_gradients(const FlashBackwardBlock& b, const Sight<NV>& sight, const vfloat (&delta)[NV], const vfloat (&lse)[NV],
                     const TilePlace& at) {
  const bool masked = !sight.covers(at.key, at.key + at.keys), flows = b.d_o.data != nullptr, bends = b.options.softcap > 0;
  const bool drops = b.options.drops, biased = b.dbias.data != nullptr;
  const float scale = b.shape.scale;
  if (b.options.scores) adjust_scores<NV>(b.options, at, b.scratch, b.scratch.slopes);
  if (drops) keep_tile<NV>(b.options, at, b.scratch);
  for (std::int64_t j = 0; j < at.keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const std::int64_t place = (j * NV + v) * lanes;
      vfloat e = vexp(load(b.scratch.p + place) - lse[v]);
      if (masked && !mutant("attention.mask_of_p")) e = sight.sees(at.key + j, v) ? e : vfloat{};
      vfloat dp = flows ? load(b.scratch.ds + place) : vfloat{};
      if (drops) {
        const vfloat keep = load(b.scratch.keep + place);
        store(b.scratch.p + place, mutant("attention.dropout_of_p") ? e : e * keep);
        if (!mutant("attention.dropout_of_dp")) dp *= keep;
      } else {
        store(b.scratch.p + place, e);
      }
      vfloat gradient = e * (dp - delta[v]);
      if (biased) store(b.scratch.bias + place, flipped("attention.bias_gradient", gradient));
      if (bends && !mutant("attention.softcap_slope")) gradient *= load(b.scratch.slopes + place);
      store(b.scratch.ds + place, mutant("attention.scale") ? gradient : gradient * scale);
    }
}

template <int NV>
void put_bias_gradient(const FlashBackwardBlock& b, const TilePlace& at, const float* ones) {
  constexpr std::int64_t stride = wide(block_keys);
  unpack_transposed<NV>(b.scratch.bias, ones, at.count, at.keys, stored(b.scratch.rows, stride));
  with_output(b.dbias, [&]<class S>(const Output<S>& out) {
    S row[stride];
    for (std::int64_t i = 0; i < at.count; ++i) {
      S* const to = out.data + i * out.stride + (at.key - b.key_origin) * b.dbias_key;
      const float* const from = b.scratch.rows + i * stride;
      if (b.add_bias) {
        float* const sum = reinterpret_cast<float*>(to);
        for (std::int64_t j = 0; j < at.keys; ++j) sum[j * b.dbias_key] += from[j];
        continue;
      }
      for (std::int64_t j = 0; j < at.keys; j += lanes) store(row + j, load(from + j));
      for (std::int64_t j = 0; j < at.keys; ++j) to[j * b.dbias_key] = row[j];
    }
  });
}

template <int NV>
void backward(const FlashBackwardBlock& b) {
  constexpr std::int64_t width = NV * lanes;
  const FlashShape& s = b.shape;
  const FlashScratch& scratch = b.scratch;
  Sight<NV> sight;
  sight.set(s, 0);
  const bool flows = b.d_o.data != nullptr, wants_ds = b.dq.data != nullptr || b.dk.data != nullptr || b.dbias.data != nullptr;
  const bool any = s.key_begin < s.key_end;
  vfloat delta[NV]{}, lse[NV]{};
  FlashRows q_rows{}, d_o_rows{};
  if (any) {
    pack_transposed<NV>(b.q, s.queries, s.head_dim, s.scale, scratch.q);
    if (flows) pack_transposed<NV>(b.d_o, s.queries, s.value_dim, 1, scratch.d_o);
    deltas<NV>(b, delta, lse);
    if (b.dk.data != nullptr) q_rows = gathered(b.q, s.queries, s.head_dim, scratch.q_rows);
    if (b.dv.data != nullptr && flows) d_o_rows = gathered(b.d_o, s.queries, s.value_dim, scratch.d_o_rows);
  }
  float ones[width];
  for (float& one : ones) one = 1;
  bool started = false;
  for (std::int64_t j = s.key_begin; j < s.key_end; j += block_keys, started = true) {
    const std::int64_t keys = s.key_end - j < block_keys ? s.key_end - j : block_keys, row = j - b.key_origin;
    const FlashRows k = gathered(rows_from(b.k, j), keys, s.head_dim, scratch.k_rows);
    const FlashRows v = gathered(rows_from(b.v, j), keys, s.value_dim, scratch.v_rows);
    multiply<NV, false>({k.data, k.stride, scratch.q, width, scratch.p, width, keys, s.head_dim, false, nullptr});
    if (flows && wants_ds)
      multiply<NV, false>({v.data, v.stride, scratch.d_o, width, scratch.ds, width, keys, s.value_dim, false, nullptr});
    const TilePlace at{0, s.queries, j, keys};
    score_gradients<NV>(b, sight, delta, lse, at);
    if (b.dbias.data != nullptr) put_bias_gradient<NV>(b, at, ones);
    if (b.dq.data != nullptr)
      multiply<NV, true>({k.data, k.stride, scratch.ds, width, scratch.dq, width, s.head_dim, keys,
                          started && !mutant("attention.dq_of_the_last_keys"), nullptr});
    if (b.dk.data != nullptr)
      multiply_wide({scratch.ds, width, q_rows.data, q_rows.stride, b.dk.data + row * b.dk.stride, b.dk.stride, keys, s.queries,
                     true, nullptr},
                    whole_vectors(s.head_dim));
    if (b.dv.data != nullptr && flows)
      multiply_wide({scratch.p, width, d_o_rows.data, d_o_rows.stride, b.dv.data + row * b.dv.stride, b.dv.stride, keys, s.queries,
                     true, nullptr},
                    whole_vectors(s.value_dim));
  }
  if (b.dq.data == nullptr) return;
  if (!started)
    for (std::int64_t i = 0; i < s.head_dim * width; i += lanes) store(scratch.dq + i, vfloat{});
  unpack_transposed<NV>(scratch.dq, ones, s.queries, s.head_dim, b.dq);
}

void backward_block(const FlashBackwardBlock& b) {
  const std::int64_t vectors = whole_vectors(b.shape.queries);
  if (vectors == 1)
    backward<1>(b);
  else if (vectors == 2)
    backward<2>(b);
  else if (vectors == 3)
    backward<3>(b);
  else
    backward<4>(b);
}

}  // namespace

extern const AttentionBackwardKernels attention_backward_kernels;
const AttentionBackwardKernels attention_backward_kernels{backward_block};

}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
