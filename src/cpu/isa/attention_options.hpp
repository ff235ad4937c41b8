// What softcap, ALiBi, an additive bias and dropout do to a tile of scores with queries side by side in vectors, and to one row
// with keys side by side. Internal linkage, as core/simd.hpp. Included by the attention sources of this folder only.
#pragma once

#include "core/mutant.hpp"
#include "cpu/isa/attention_tile.hpp"

namespace everglow::EVERGLOW_ISA_NAMESPACE {
namespace {

/// Queries [first, first + count) and keys [key, key + keys) of a tile.
struct TilePlace {
  std::int64_t first, count, key, keys;
};

/// Philox4x32-10 (core/philox.hpp) of `lanes` counters: words [lanes, 4].
inline void philox_lanes(std::uint64_t seed, std::uint64_t counter, std::uint32_t* words) {
  std::uint32_t c[4][lanes];
  for (int i = 0; i < lanes; ++i) {
    const std::uint64_t here = counter + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(here), c[1][i] = static_cast<std::uint32_t>(here >> 32), c[2][i] = c[3][i] = 0;
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U)
    for (int i = 0; i < lanes; ++i) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0][i], b = std::uint64_t{0xCD9E8D57U} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(b >> 32) ^ c[1][i] ^ k0, c[1][i] = static_cast<std::uint32_t>(b);
      c[2][i] = static_cast<std::uint32_t>(a >> 32) ^ c[3][i] ^ k1, c[3][i] = static_cast<std::uint32_t>(a);
    }
  for (int i = 0; i < lanes; ++i)
    for (int word = 0; word < 4; ++word) words[4 * i + word] = c[word][i];
}

/// keep[count] = 0 where dropout drops, else the factor: for the query and the keys from `key` on.
__attribute__((noinline)) void keep_row(const FlashOptions& o, std::int64_t query, std::int64_t key, std::int64_t count,
                                        float* keep) {
  const std::uint64_t element =
      o.first_element + static_cast<std::uint64_t>(query) * o.query_elements + static_cast<std::uint64_t>(key);
  std::uint64_t counter = o.offset + element / 4;
  std::int64_t skipped = static_cast<std::int64_t>(element % 4);
  std::uint32_t words[4 * lanes];
  for (std::int64_t done = 0; done < count; counter += lanes, skipped = 0) {
    philox_lanes(o.seed, counter, words);
    const std::int64_t here = count - done < 4 * lanes - skipped ? count - done : 4 * lanes - skipped;
    for (std::int64_t i = 0; i < here; ++i)
      keep[done + i] = words[mutant("attention.dropout_word") ? i : skipped + i] >= o.threshold ? o.kept : 0.0F;
    done += here;
  }
}

/// scratch.keep[keys, NV vectors]
template <int NV>
void keep_tile(const FlashOptions& o, const TilePlace& at, const FlashScratch& scratch) {
  const std::int64_t count = at.count < NV * lanes ? at.count : NV * lanes;
  for (std::int64_t i = 0; i < count; ++i) keep_row(o, at.first + i, at.key, at.keys, scratch.rows + i * wide(block_keys));
  pack_transposed<NV>({scratch.rows, wide(block_keys), FlashStorage::f32}, count, at.keys, 1, scratch.keep);
}

/// scratch.bias[keys, NV vectors]
template <int NV>
void bias_tile(const FlashOptions& o, const TilePlace& at, const FlashScratch& scratch) {
  const StoredRows from = moved(o.bias, at.first * o.bias.stride + at.key * o.bias_key);
  if (o.bias_key == 1) return pack_transposed<NV>(from, at.count, at.keys, 1, scratch.bias);
  with_rows(from, [&]<class S>(const Rows<S>& rows) {
    for (std::int64_t j = 0; j < at.keys; ++j)
      for (int v = 0; v < NV; ++v) {
        S queries[lanes] = {};
        for (int i = 0; i < lanes && v * lanes + i < at.count; ++i)
          queries[i] = rows.data[(v * lanes + i) * rows.stride + j * o.bias_key];
        store(scratch.bias + (j * NV + v) * lanes, load(queries));
      }
  });
}

/// Scores p[keys, NV vectors] after softcap, bias and ALiBi; whether a bias of -inf hides a pair. `slopes` (null: not wanted) takes
/// the derivative of softcap.
template <int NV>
__attribute__((noinline)) bool adjust_scores(const FlashOptions& o, const TilePlace& at, const FlashScratch& scratch,
                                             float* slopes) {
  if (o.bias.data != nullptr) bias_tile<NV>(o, at, scratch);
  const float inverse = o.softcap > 0 ? 1 / o.softcap : 0;
  vint centre[NV];
  for (int v = 0; v < NV; ++v)
    for (int i = 0; i < lanes; ++i) centre[v][i] = static_cast<std::int32_t>(o.diagonal + at.first - at.key) + v * lanes + i;
  vint hides{};
  for (std::int64_t j = 0; j < at.keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const std::int64_t place = (j * NV + v) * lanes;
      vfloat x = load(scratch.p + place);
      if (o.softcap > 0) {
        const vfloat bent = vtanh(x * inverse);
        if (slopes != nullptr) store(slopes + place, 1.0F - bent * bent);
        x = bent * o.softcap;
      }
      const vfloat bias = o.bias.data != nullptr ? load(scratch.bias + place) : vfloat{};
      if (o.bias.data != nullptr) x += bias;
      if (o.slope != 0) {
        const vint distance = centre[v] - static_cast<std::int32_t>(j);
        x -= flipped("attention.slopes", o.slope) * __builtin_convertvector(distance < 0 ? -distance : distance, vfloat);
      }
      if (o.bias.data != nullptr) {
        const vint hidden = bias == -infinity();
        hides |= hidden;
        x = hidden ? -infinity() : x;  // whatever q and k hold
      }
      store(scratch.p + place, x);
    }
  std::int32_t any = 0;
  for (int i = 0; i < lanes; ++i) any |= hides[i];
  return any != 0;
}

/// As adjust_scores for one query and the keys [j, j + lanes); those from `end` on do not count.
inline vfloat adjusted_row(const FlashOptions& o, std::int64_t query, std::int64_t j, std::int64_t end, vfloat x) {
  vfloat bias{};
  if (o.softcap > 0) x = vtanh(x * (1 / o.softcap)) * o.softcap;
  if (o.bias.data != nullptr)
    with_rows(moved(o.bias, query * o.bias.stride + j * o.bias_key), [&]<class S>(const Rows<S>& rows) {
      S keys[lanes] = {};
      for (int i = 0; i < lanes && j + i < end; ++i) keys[i] = rows.data[i * o.bias_key];
      bias = load(keys);
      x += bias;
    });
  if (o.slope != 0) {
    vint distance;
    for (int i = 0; i < lanes; ++i) distance[i] = static_cast<std::int32_t>(o.diagonal + query - j) - i;
    x -= o.slope * __builtin_convertvector(distance < 0 ? -distance : distance, vfloat);
  }
  return bias == -infinity() ? -infinity() : x;  // whatever q and k hold
}

}  // namespace
}  // namespace everglow::EVERGLOW_ISA_NAMESPACE
