// What a device can do by its data sheet or by measurement: the numbers that predictions are made of.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace everglow {

/// A cache of one CPU core: the part of it that the core may fill, and what the core reads from it.
struct CacheFigures {
  std::int64_t bytes = 0;
  double gbs = 0;  ///< GB/s
};

/// What a product costs a CPU, row-major C[m, n] = A[m, k] B[k, n]: the call, and m n k, m k, k n and m n times what one of them
/// costs. The weights are B, or in a weight gradient C; the rows of the batch are m, or in a weight gradient k.
struct ProductCosts {
  double call_us = 0;
  double multiply_ns = 0;               ///< a multiply-add; 0: nothing is known of such products
  double a_ns = 0, b_ns = 0, c_ns = 0;  ///< an element: to read, pack, convert or store it
};

/// What attention costs one thread of a CPU.
struct AttentionCosts {
  double multiply_ns = 0;  ///< a multiply-add of one score and one column of k or v
  double score_ns = 0;     ///< a score: exponential, maximum, sum, and on the way back the gradient of the softmax
  double move_ns = 0;      ///< an element of a row that is read and laid out for the products, or laid back
  double block_us = 0;     ///< a block of queries
};

/// What the rows of a CPU are made of, in measured costs (`everglow probe`) or estimated ones. Operands of `library`, `own` and
/// `few` come from memory. Index of a dtype: f32, f16, bf16; of a pass: forward, activation gradient, weight gradient; of a
/// direction: forward, backward; of a cell: lstm, gru, gru_reset_before, tanh or relu.
struct CpuFigures {
  int threads = 0;                                           ///< of `library` and `own`; 0: nothing is known
  double speedup = 1;                                        ///< of these many threads beside one, in large products
  double core_bandwidth_gbs = 0;                             ///< of main memory, one core alone
  std::array<double, 3> core_tflops{};                       ///< large products of a dtype on one core
  double fork_us = 0;                                        ///< to wake all threads and to meet at the end
  double hand_off_us = 0;                                    ///< a flag from one core to another and back
  double exponential_ns = 0;                                 ///< an element of a softmax in cache, one thread
  std::array<std::array<ProductCosts, 3>, 3> library{};      ///< [dtype][pass] of oneDNN
  std::array<std::array<ProductCosts, 3>, 3> own{};          ///< [dtype][pass] of our micro-kernel, which packs B first
  std::array<ProductCosts, 3> step{};                        ///< [dtype] one thread, packed B in its L2, A in L1: a step of a loop
  std::array<std::array<double, 2>, 3> pack_ns{};            ///< [dtype][as it lies, transposed] an element of B, one thread
  std::array<std::array<double, 2>, 4> cell_ns{};            ///< [cell][direction] a hidden unit of one row, one thread
  std::array<std::array<AttentionCosts, 2>, 3> attention{};  ///< [dtype][direction] blocks of queries
  std::array<std::array<AttentionCosts, 2>, 3> small_heads{};  ///< [dtype][direction] whole heads of few queries and keys
  std::array<double, 3> few_queries_ns{};                      ///< [dtype] a multiply-add where a few queries read all keys
};

/// Rates are of the whole device, dense, with f32 accumulation, in TFLOP/s (a multiply-add is two); 0: it has no such units.
struct DeviceFigures {
  std::string source{};               ///< "data sheet", "estimated", "measured", or the file that the numbers came from
  int units = 0;                      ///< streaming multiprocessors, or cores
  int capability = 0;                 ///< compute capability times ten (H200: 90); 0: a CPU
  double clock_ghz = 0;               ///< boost clock
  double f64_tflops = 0;              ///< without tensor cores
  double f32_tflops = 0;              ///< without tensor cores
  double tf32_tflops = 0;             ///< tensor cores
  double f16_tflops = 0;              ///< tensor cores
  double bf16_tflops = 0;             ///< tensor cores
  double bandwidth_gbs = 0;           ///< of device memory; CPU: of main memory, all cores together
  double memory_gib = 0;              ///< capacity
  std::int64_t l2_bytes = 0;          ///< GPU: of the device; CPU: of one core
  std::int64_t shared_bytes = 0;      ///< shared memory that one thread block may have; 0: a CPU
  std::int64_t register_bytes = 0;    ///< of one SM
  std::int64_t tensor_alignment = 0;  ///< bytes that rows of operands must be multiples of for full speed; 0: no such rule
  std::int64_t best_alignment = 0;    ///< bytes that are best by the vendor's guide
  int largest_cluster = 1;            ///< thread blocks that reach one another's shared memory
  double achieved_math = 0.75;        ///< share of the rate that large products reach
  double achieved_bandwidth = 0.88;   ///< share of the bandwidth that a copy reaches
  CacheFigures l1{}, l2{}, l3{};      ///< CPU alone
  CpuFigures cpu{};                   ///< CPU alone
};

}  // namespace everglow
