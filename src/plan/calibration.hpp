// Every number of the predictions that no data sheet gives, in one place, each with its source. "H200 table" is the table of
// measured products in docs/plan.md; "H200 floors" are latencies that one H200 showed. "assumed" means that nothing was measured.
#pragma once

#include <cstdint>
#include <string_view>

namespace everglow::plan::calibration {

/// The share of its tensor rate that a device reaches in large products.
struct MathShare {
  std::string_view device;
  double share;
};
inline constexpr MathShare math_shares[] = {
    {"v100-16", 0.80},    // assumed: near 100 of 125 TFLOP/s
    {"t4", 0.55},         // assumed: 70 W do not hold its clock
    {"a100-40", 0.86},    // 271 of 312 TFLOP/s measured (ml-engineering, maximum achievable matmul), less its last per cent
    {"a100-80", 0.86},    // the same
    {"rtx4090", 0.90},    // assumed: its power limit is seldom met with f32 accumulation
    {"l4", 0.60},         // assumed: 72 W do not hold its clock
    {"l40s", 0.75},       // assumed
    {"h100-sxm", 0.745},  // 794 of 989 is its best shape (ml-engineering); the usual shape as on the H200
    {"h100-pcie", 0.70},  // assumed: as h100-sxm, at 350 W
    {"h200", 0.745},      // H200 table: the middle of its large aligned rows
    {"b200", 0.75},       // 1745 of 2250 is its best shape (ml-engineering), less as on the H200
};
inline constexpr double cuda_core_share = 0.85;  // assumed: f32 and f64 products without tensor cores
inline constexpr double plain_share = 0.10;      // H200: the generic products of the CUDA rows, 6.5 of 66.9 TFLOP/s
inline constexpr double bandwidth_share = 0.88;  // H200: a copy moves 4.25 of 4.8 TB/s

inline constexpr double reference_flops_a_clock = 0.4;  // bench/results: 1/353 of oneDNN on two AVX-512 cores
inline constexpr double reference_unit_products = 16;   // assumed: a hidden unit or a score of it, in multiply-adds
inline constexpr double cpu_call_us = 0.3;              // two virtual cores: an empty run of a plan
inline constexpr double cpu_fork_us = 5.0;              // the same: waking OpenMP's threads and meeting at the end
inline constexpr double cpu_library_call_us = 3.0;      // the same: oneDNN's look-up and call
inline constexpr double launch_us = 3.0;  // H200 table: what is left of 4096 x 1024 x 4096 and 16 x 4096 x 14336 beside the model

/// Rows of operands that are no multiples of 16 bytes: the library takes kernels without bulk copies. Of the aligned rate.
inline constexpr double misaligned_share = 0.345;     // H200 table: 33708 (8 bytes)
inline constexpr double misaligned_2_bytes = 0.18;    // H200 table: 1023 x 4097, where nothing but single elements can be loaded
inline constexpr double misaligned_no_tensor = 0.25;  // below sm_80 they run without tensor cores: 31.4 of 125 on a V100

/// A tile of m x n reads m + n elements for m n products of each k. Its rate falls with the square root of that ratio beside
/// 256 x 128: 128 x 128 0.87, 128 x 64 0.71, 64 x 64 0.61 (the order is that of NVIDIA's guide; the square root is assumed).
inline constexpr double best_tile_reuse = 256.0 * 128 / (256 + 128);
inline constexpr std::int64_t least_split_k = 512;  // assumed: shorter parts of K do not fill a pipeline
inline constexpr std::int64_t most_splits = 16;     // assumed

// The recurrent loop. A step on chip is hand-off + broadcast + arithmetic; the first two by H200 floors: every block of a group
// reads the whole of h, whose words say for themselves whether they have come (no barrier).
struct HandOff {
  std::int64_t blocks;  // at most
  double us;
};
inline constexpr HandOff grid_hand_offs[] = {{16, 0.53}, {32, 0.63}, {64, 0.68}, {1 << 30, 0.97}};  // through L2
inline constexpr HandOff cluster_hand_offs[] = {{4, 0.32}, {8, 0.41}, {1 << 30, 0.54}};             // shared memory of a cluster
inline constexpr double broadcast_us_per_kib = 0.020;                                               // H200 floors, either way
inline constexpr double hand_off_before_sm90 = 1.5;  // V100 and A100 grid barriers take 1.1 to 1.4 us, 0.9 on an H200
inline constexpr double pointwise_us = 0.15;         // assumed: gates, state and the store of a step
inline constexpr double block_barrier_us = 0.03;     // 23 to 85 clocks (IISWC'24)
/// Clocks of wgmma m64nNk16: 14, 15, 18 for N = 8, 16, 32 (H200 floors), then N / 2 at 90 % of the rate.
inline constexpr double wgmma_clocks = 12.7, wgmma_clocks_per_n = 0.1625, wgmma_most = 0.9;
inline constexpr double small_mma_share = 0.5;  // assumed: mma.sync before sm_90, of the tensor rate

inline constexpr std::int64_t shared_not_weights = 27 << 10;  // of an SM: h, gates, buffers; leaves 200 of 227 KiB on an H200
inline constexpr std::int64_t register_weights = 96 << 10;    // of 256 KiB, sm_80 and later
inline constexpr std::int64_t register_weights_before_sm80 = 64 << 10;  // loads pass through registers there
inline constexpr std::int64_t sms_together = 16;  // a grid in clusters of 16 or in equal groups leaves the rest: 128 of 132
inline constexpr std::int64_t hidden_step = 64;   // the largest hidden size is given in multiples of this

/// cuDNN's standard algorithm on an H200: the host launches a step in 12.2 to 12.8 us whatever the hidden size from 256 on, and one
/// on the way back in 12.6 to 15.9; where the device takes longer, its time counts, the gates' kernel beside the product.
inline constexpr double standard_step_us = 12.2, standard_backward_us = 14.0;
inline constexpr double standard_gates_us = 1.3;  // H200, LSTM 2048, B 16: what is left of 12.8 beside 11.0 and the inputs' 0.8
/// cuDNN's persistent kernels (H200, f16, LSTM): 1.25, 1.21, 1.84 us a step at hidden 256, 512, 1024 and B <= 16; 6.7 to 8.3 at 64.
inline constexpr double persist_us = 0.9, persist_us_per_unit = 1.0e-3, persist_us_per_row = 0.11;
inline constexpr std::int64_t persist_rows = 16;  // rows that cost nothing more
inline constexpr double backward_step = 1.6;      // H200, cuDNN: LSTM 1024, B 64: 22.2 us a training step, 8.3 forward, 1.9 for dW

// Attention: shares of the tensor rate, forward, by head dimension (up to 64, 128, 256). H200, bf16, 8k and 16k tokens.
struct AttentionShare {
  std::int64_t head_dim;  // at most
  double hopper;          // wgmma kernels: 497 to 506, 640 to 650, 704 to 714 of 989 TFLOP/s (FlashAttention-3)
  double flash2_hopper;   // 303, 336, 321 (FlashAttention-2)
  double flash1_hopper;   // FlashAttention-2 is 1.75, 2.4 times as fast on an H100; 256 assumed
  double flash2;          // A100: up to 230 of 312 at 128 (its paper: 50 to 73 %)
  double flash1;          // A100: 25 to 40 % (the same paper)
  double backward;        // backward beside forward rate: 506 to 521, 596 and 448 of the hopper column
};
inline constexpr AttentionShare attention_shares[] = {{64, 0.51, 0.305, 0.175, 0.61, 0.30, 1.0},
                                                      {128, 0.65, 0.34, 0.14, 0.71, 0.35, 0.92},
                                                      {1 << 30, 0.72, 0.325, 0.13, 0.60, 0.28, 0.63}};
inline constexpr double flash2_backward = 0.85;  // 279/303, 299/336, 255/321 on an H200
inline constexpr double attention_small = 0.4;   // assumed, below sm_80 and without tensor cores, of the rate
inline constexpr double half_block = 0.5;        // of one key block: prologue and epilogue of a block of queries
inline constexpr double causal_overhead = 0.08;  // H200, FlashAttention-3: 619 of 650 causal, blocks on the diagonal counted whole
inline constexpr std::int64_t splitting_pays_keys = 4;  // key blocks up to which keys are not split (FlashAttention-3)
inline constexpr double full_enough = 0.8;              // share of the SMs from which keys are not split (the same)
inline constexpr double near_best_split = 0.85;         // the smallest count within this share of the best efficiency (the same)
inline constexpr std::int64_t most_key_splits = 128;    // the same

// A CPU whose costs nobody measured (`everglow probe` does). "probe" is one of two AVX-512 cores of an AMD EPYC (Zen 4, 3.9 GHz),
// in clocks of one vector of f32.
inline constexpr double cpu_l2_share = 0.5;          // of each core's L2 for weights: LSTM 512 in bf16 on two cores of 2 MiB
inline constexpr double cpu_hand_off_us = 0.14;      // a flag from core to core and back, on that and on an Intel Xeon
inline constexpr double cpu_attention_share = 0.85;  // bench/results: 125 beside 141 GFLOP/s of products in the same run
inline constexpr double cell_units = 16;             // hidden units of a block of src/cpu/isa/recurrent_cells.hpp
inline constexpr double stored_unit_clocks = 0.3;    // assumed: h of 16 bits, rounded and read again, of an exponential
inline constexpr double layout_clocks = 12;          // probe: an operand of a product, packed or stored
inline constexpr double turn_clocks = 16;            // probe: packed and transposed
inline constexpr double exponential_clocks = 80;     // probe: softmax of rows in cache
inline constexpr double score_clocks = 37, score_backward_clocks = 40;  // probe: blocks of attention
inline constexpr double move_clocks = 30;                               // probe: rows of q, k, v and o
inline constexpr double block_us = 0.6;                                 // probe: a block of queries
/// Probe: hidden units of lstm, gru, gru_reset_before and tanh, with what else a layer does for each.
struct CellClocks {
  double forward, backward;
};
inline constexpr CellClocks cell_clocks[] = {{218, 580}, {193, 405}, {193, 440}, {87, 162}};

}  // namespace everglow::plan::calibration
