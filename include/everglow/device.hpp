// What a device can do by its data sheet or by measurement: the numbers that predictions are made of.
#pragma once

#include <cstdint>
#include <string>

namespace everglow {

/// A cache of one CPU core: the part of it that the core may fill, and what the core reads from it.
struct CacheFigures {
  std::int64_t bytes = 0;
  double gbs = 0;  ///< GB/s
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
};

}  // namespace everglow
