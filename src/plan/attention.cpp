// Formulas of attention. Bytes: Dao et al., arXiv 2205.14135 (standard, FlashAttention) and 2307.08691 (FlashAttention-2); tiles of
// sm_90: FlashAttention-3's hopper/tile_size.h; the split of keys: its heuristics.h.
#include "plan/attention.hpp"

#include "core/text.hpp"
#include "plan/advice.hpp"
#include "plan/attention_shape.hpp"
#include "plan/calibration.hpp"

#include <algorithm>
#include <cmath>

namespace everglow::plan {
namespace {

namespace c = calibration;

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return b > 0 ? (a + b - 1) / b : 0; }
double real(std::int64_t value) { return static_cast<double>(value); }

const c::AttentionShare& share_of(double head_dim) {
  const auto* entry = std::begin(c::attention_shares);
  while (real(entry->head_dim) < head_dim) ++entry;
  return *entry;
}

struct Tile {
  std::int64_t queries, keys;
};

Tile hopper_tile(const AttentionDescription& d) {
  const bool masked = d.causal || d.window_left >= 0 || d.window_right >= 0;
  if (d.head_dim <= 64) return {192, masked ? 128 : 192};
  if (d.head_dim <= 96) return {192, 144};
  if (d.head_dim <= 128) return {128, masked ? 128 : 176};
  if (d.head_dim <= 192) return {128, 112};
  return {128, 80};
}

Tile ampere_tile(const AttentionDescription& d) {
  if (d.head_dim <= 64) return {128, 128};
  if (d.head_dim <= 128) return {128, 64};
  return {64, 64};
}

/// FlashAttention-3: one part where the blocks nearly fill the device, else the smallest count near the best wave efficiency.
std::int64_t splits_of(double blocks, std::int64_t key_blocks, int units) {
  if (blocks <= 0 || blocks >= c::full_enough * units || key_blocks <= c::splitting_pays_keys) return 1;
  const std::int64_t most = std::min({c::most_key_splits, whole(units), key_blocks});
  const auto efficiency = [&](std::int64_t splits) { return wave_efficiency(blocks * real(splits) / units); };
  double best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(splits));
  for (std::int64_t splits = 1; splits <= most; ++splits)
    if (efficiency(splits) >= c::near_best_split * best) return splits;
  return 1;
}

struct Rates {
  double forward, backward;  // shares of the machine's peak
};

/// Blocks, waves, splits and the time of a tiled algorithm whose bytes stand.
void time_tiled(ExplanationAlgorithm& out, const AttentionDescription& d, const Shape& s, const Machine& machine,
                const Rates& rates) {
  const double heads = s.B * s.Hq;
  // Few queries: those of the heads that share keys stand in one tile, of which only whole matrix instructions are computed.
  const double group = s.Hq / std::max(s.Hk, 1.0);
  const bool few = s.Sq * group <= real(out.tile.m) && out.name != "flash1";
  const double rows = few ? s.Sq * group : s.Sq, unit = !few ? real(out.tile.m) : out.name == "flash2" ? 16 : 64;
  // FlashAttention has a block for each head, FlashAttention-2 one for each block of queries.
  out.blocks = whole(s.B * (few ? s.Hk : s.Hq) * (out.name == "flash1" ? 1 : std::ceil(rows / real(out.tile.m))));
  const std::int64_t key_blocks = divided_up(whole(s.Sk), out.tile.n);
  out.splits = out.name == "flash1" ? 1 : splits_of(real(out.blocks), key_blocks, machine.units);
  out.waves = real(out.blocks) * real(out.splits) / machine.units;
  // Parts of the keys leave f32 results behind, which are read once more.
  if (out.splits > 1) out.bytes = whole(real(out.bytes) + 2 * 4 * real(out.splits) * heads * s.Sq * (s.Dv + 1));
  const double filled = rows > 0 ? rows / (std::ceil(rows / unit) * unit) : 1;
  const double seen = s.Sq > 0 ? std::max(s.scores / s.Sq, 1.0) : 1;
  const double prologue = 1 + c::half_block * real(out.tile.n) * real(out.splits) / std::max(seen, real(out.tile.n));
  const double masked = d.causal ? 1 + c::causal_overhead : 1;
  const double math = out.flops * prologue * masked / (machine.peak * filled * std::max(wave_efficiency(out.waves), 1e-9));
  const double memory = real(out.bytes) / machine.copy;
  out.time_us = machine.overhead_us * (out.splits > 1 ? 2 : 1) + std::max(math / rates.forward, memory);
  out.backward_time_us = 3 * machine.overhead_us + std::max(2.5 * math / rates.backward, 2.5 * memory);
  if (out.flops == 0) out.time_us = out.backward_time_us = 0;
}

ExplanationAlgorithm standard(const AttentionDescription& d, const Shape& s, const Machine& machine, double flops) {
  ExplanationAlgorithm out{.name = "standard"};
  const double all = s.B * s.Hq * s.Sq * s.Sk;
  out.bytes = whole(queries_bytes(s) + keys_values_bytes(s) + output_bytes(s) + 4 * s.element * all);
  out.flops = 2 * all * (s.D + s.Dv);
  out.formula = "Q + K + V + O + 4 B Hq Sq Sk e: scores written and read, probabilities written and read; no mask saves anything";
  const auto sq = whole(s.Sq), sk = whole(s.Sk);
  const Product qk{sk, sq, d.head_dim};
  const ExplanationTile tile = machine.tiles.front();
  out.tile = tile;
  out.blocks = whole(s.B * s.Hq * real(tiles_of(qk, tile)));
  out.waves = real(out.blocks) / machine.units;
  const double math = out.flops / machine.rate, memory = real(out.bytes) / machine.copy;
  // Products, softmax and products again are kernels of their own, which do not overlap.
  out.time_us = flops > 0 ? 3 * machine.overhead_us + math + memory : 0;
  out.backward_time_us = flops > 0 ? 6 * machine.overhead_us + 2.5 * (math + memory) : 0;
  return out;
}

void set_tile(ExplanationAlgorithm& out, const Tile& tile, const Shape& s) {
  const double m = real(tile.queries), n = real(tile.keys);
  out.tile = {tile.queries, tile.keys};
  out.register_bytes = whole(4 * m * n + s.element * m * n + 4 * m * s.Dv);  // scores, probabilities, output
}

ExplanationAlgorithm flash1(const AttentionDescription& d, const Shape& s, const Machine& machine, double flops) {
  ExplanationAlgorithm out{.name = "flash1", .flops = flops};
  const Tile tile{16, d.head_dim <= 64 ? 256 : d.head_dim <= 128 ? 128 : 64};  // fmha_fwd_hdim32, 64, 128 of its version 1
  set_tile(out, tile, s);
  const double passes = std::ceil(s.Sk / real(tile.keys)), rows = s.B * s.Hq * s.Sq;
  out.bytes =
      whole(keys_values_bytes(s) * s.Hq / std::max(s.Hk, 1.0) + passes * (queries_bytes(s) + 2 * output_bytes(s) + 4 * 4 * rows));
  out.formula =
      text("K + V + ceil(Sk/", tile.keys, ") (Q + 2 O + 16 B Hq Sq): each block of keys reads Q, O, m and l and writes O, m and l");
  out.shared_bytes = whole(s.element * (real(tile.queries) * s.D + real(tile.keys) * (s.D + s.Dv)));
  const c::AttentionShare& share = share_of(s.D);
  const double rate = machine.tensor ? machine.capability >= 90 ? share.flash1_hopper : share.flash1 : c::attention_small / 2;
  time_tiled(out, d, s, machine, {rate, rate * c::flash2_backward});
  return out;
}

/// FlashAttention-2's order of loops, with the tiles of mma.sync or of wgmma.
ExplanationAlgorithm flash2(const AttentionDescription& d, const Shape& s, const DeviceFigures& f, const Machine& machine,
                            bool hopper) {
  ExplanationAlgorithm out{.name = hopper ? "warp_specialised" : "flash2"};
  const Tile tile = hopper ? hopper_tile(d) : ampere_tile(d);
  set_tile(out, tile, s);
  const double m = real(tile.queries), n = real(tile.keys);
  // Query blocks of a head that run together read its keys and values through L2: memory sees them once where they fit.
  const double running = std::max(1.0, machine.units / std::max(1.0, std::ceil(s.Sq / m)));
  const double in_flight = std::min(running, s.B * s.Hk) * s.element * s.Sk * (s.D + s.Dv);
  const double rows = std::ceil(s.Sq / m),
               again = in_flight <= real(f.l2_bytes) ? 1 : std::max(1.0, rows * s.scores / std::max(s.Sq * s.Sk, 1.0));
  out.bytes = whole(queries_bytes(s) + output_bytes(s) + 4 * s.B * s.Hq * s.Sq + again * keys_values_bytes(s));
  out.formula = again > 1 ? text("Q + O + LSE + ceil(Sq/", tile.queries,
                                 ") (K + V): keys and values exceed L2, each block of queries reads them")
                          : std::string("Q + O + LSE + K + V: blocks of queries share keys and values through L2");
  const double stages = hopper ? 2 : 1;
  out.shared_bytes = whole(s.element * (m * std::max(s.D, s.Dv) + stages * n * (s.D + s.Dv)));
  const c::AttentionShare& share = share_of(s.D);
  Rates rates{c::attention_small, c::attention_small * c::flash2_backward};
  if (hopper)
    rates = {share.hopper, share.hopper * share.backward};
  else if (machine.tensor && machine.capability >= 80) {
    const double rate = machine.capability >= 90 ? share.flash2_hopper : share.flash2;
    rates = {rate, rate * c::flash2_backward};
  }
  out.flops = attention_flops(d, {whole(s.B), whole(s.Sq), whole(s.Sk)});
  time_tiled(out, d, s, machine, rates);
  return out;
}

}  // namespace

Shape shape_of(const AttentionDescription& d, const AttentionSizes& s, std::int64_t element) {
  const double Sq = real(s.queries), Sk = real(s.keys);
  double scores = Sq * Sk;
  if (d.causal) {
    // Bottom right: query i sees keys up to i + Sk - Sq; top left: up to i.
    const double shift = d.alignment == CausalAlignment::bottom_right ? Sk - Sq : 0;
    const double first = std::clamp(1 + shift, 0.0, Sk), last = std::clamp(Sq + shift, 0.0, Sk);
    const double rising = std::clamp(last - first + 1, 0.0, Sq), full = std::clamp(Sq + shift - Sk, 0.0, Sq);
    scores = std::min(rising * (first + last) / 2 + full * Sk, scores);
  }
  const double left = d.window_left >= 0 ? real(d.window_left) : Sk, right = d.causal              ? 0
                                                                             : d.window_right >= 0 ? real(d.window_right)
                                                                                                   : Sk;
  if (d.window_left >= 0 || d.window_right >= 0) scores = std::min(scores, Sq * std::min(left + right + 1, Sk));
  const std::int64_t kv_heads = d.kv_heads > 0 ? d.kv_heads : d.heads, value_dim = d.value_dim > 0 ? d.value_dim : d.head_dim;
  return {real(s.batch), Sq, Sk, real(d.heads), real(kv_heads), real(d.head_dim), real(value_dim), real(element), scores};
}

std::vector<ExplanationGemm> attention_gemms(const AttentionDescription& d, const AttentionSizes& s, const Machine& machine) {
  const std::int64_t Dv = d.value_dim > 0 ? d.value_dim : d.head_dim, D = d.head_dim, Sq = s.queries, Sk = s.keys;
  const std::int64_t kv_heads = d.kv_heads > 0 ? d.kv_heads : d.heads;
  const std::int64_t q_row = d.heads * D, k_row = kv_heads * D, v_row = kv_heads * Dv, o_row = d.heads * Dv;
  struct Kind {
    const char *pass, *name, *a, *b, *c;
    bool transpose_a, transpose_b;
    std::int64_t m, n, k, lda, ldb, ldc;
  };
  const Kind kinds[] = {{"forward", "qk", "k", "q", "scores", true, false, Sk, Sq, D, k_row, q_row, 0},
                        {"forward", "pv", "v", "scores", "o", false, false, Dv, Sq, Sk, v_row, 0, o_row},
                        {"activation_gradient", "qk", "k", "q", "scores", true, false, Sk, Sq, D, k_row, q_row, 0},
                        {"activation_gradient", "dp", "v", "d_o", "dscores", true, false, Sk, Sq, Dv, v_row, o_row, 0},
                        {"activation_gradient", "dv", "d_o", "scores", "dv", false, true, Dv, Sk, Sq, o_row, 0, v_row},
                        {"activation_gradient", "dq", "k", "dscores", "dq", false, false, D, Sq, Sk, k_row, 0, q_row},
                        {"activation_gradient", "dk", "q", "dscores", "dk", false, true, D, Sk, Sq, q_row, 0, k_row}};
  std::vector<ExplanationGemm> out;
  for (const Kind& kind : kinds) {
    if (!d.training && std::string_view(kind.pass) != "forward") break;
    ExplanationGemm& gemm = out.emplace_back();
    gemm.pass = kind.pass, gemm.name = kind.name;
    gemm.m = kind.m, gemm.n = kind.n, gemm.k = kind.k;
    gemm.count = whole(real(s.batch) * real(d.heads));
    gemm.transpose_a = kind.transpose_a, gemm.transpose_b = kind.transpose_b;
    // Scores stay on chip (leading 0): they have no rows in memory.
    gemm.operands = {operand("a", kind.a, kind.lda, machine), operand("b", kind.b, kind.ldb, machine),
                     operand("c", kind.c, kind.ldc, machine)};
    explain_product(machine, gemm);
  }
  return out;
}

double attention_flops(const AttentionDescription& d, const AttentionSizes& sizes) {
  const Shape s = shape_of(d, sizes, 1);
  return 2 * s.B * s.Hq * s.scores * (s.D + s.Dv);
}

std::vector<ExplanationAlgorithm> attention_algorithms(const AttentionDescription& d, const AttentionSizes& sizes,
                                                       const DeviceFigures& figures, const Machine& machine) {
  const Shape s = shape_of(d, sizes, machine.element);
  const double flops = attention_flops(d, sizes);
  if (machine.cpu) return {standard(d, s, machine, flops), flash1(d, s, machine, flops), attention_on_cpu(d, s, machine, flops)};
  std::vector<ExplanationAlgorithm> out{standard(d, s, machine, flops), flash1(d, s, machine, flops),
                                        flash2(d, s, figures, machine, false)};
  if (machine.capability == 90 && machine.tensor && d.head_dim <= 256) out.push_back(flash2(d, s, figures, machine, true));
  return out;
}

namespace {

/// The algorithm of the row that runs, else the fastest.
const ExplanationAlgorithm& running(const std::vector<ExplanationAlgorithm>& algorithms, std::string_view kernel, bool training) {
  for (const ExplanationAlgorithm& a : algorithms)
    if (kernel.find(a.name) != std::string_view::npos) return a;
  const auto total = [&](const ExplanationAlgorithm& a) { return a.time_us + (training ? a.backward_time_us : 0); };
  return *std::min_element(algorithms.begin(), algorithms.end(), [&](const auto& a, const auto& b) { return total(a) < total(b); });
}

}  // namespace

void explain_attention(const AttentionDescription& d, const AttentionSizes& sizes, const DeviceFigures& figures,
                       const Machine& machine, Explanation& out) {
  out.gemms = attention_gemms(d, sizes, machine);
  out.algorithms = attention_algorithms(d, sizes, figures, machine);
  const auto time_of_sizes = [&](const AttentionDescription& other, const AttentionSizes& other_sizes) {
    const auto all = attention_algorithms(other, other_sizes, figures, machine);
    const ExplanationAlgorithm& one = running(all, out.kernel, d.training);
    return one.time_us + (d.training ? one.backward_time_us : 0);
  };
  const ExplanationAlgorithm& one = running(out.algorithms, out.kernel, d.training);
  out.passes.push_back({"forward", one.time_us});
  if (d.training) out.passes.push_back({"backward", one.backward_time_us});
  out.time_us = time_of_sizes(d, sizes);
  const Shape s = shape_of(d, sizes, machine.element);
  const double bytes = queries_bytes(s) + output_bytes(s) + keys_values_bytes(s), flops = attention_flops(d, sizes);
  const double passes = d.training ? 3.5 : 1, moves = d.training ? 3 : 1;  // backward: 2.5 times the arithmetic, twice the tensors
  out.floor_us = std::max(passes * flops / machine.peak, moves * bytes / machine.bandwidth);
  if (machine.advice && sizes.batch > 0 && sizes.total_queries == 0)
    advise(
        {.kind = "size",
         .dimension = "batch",
         .from = sizes.batch,
         .to = sizes.batch,
         .reason = "per sequence: blocks fill more of the device"},
        larger_batches(sizes.batch),
        [&](std::int64_t to) {
          AttentionSizes other = sizes;
          other.batch = to;
          return time_of_sizes(d, other) * real(sizes.batch) / real(to);
        },
        out.advice);
  sort_best_first(out.advice);
}

}  // namespace everglow::plan
