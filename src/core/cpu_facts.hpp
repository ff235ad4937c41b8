// What the system says of this CPU, read once.
#pragma once

#include <cstdint>

namespace everglow {

struct SystemFacts {
  double clock_ghz = 0;  // 0: unknown
  std::int64_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  bool amx_bf16 = false;
};
const SystemFacts& system_facts();

}  // namespace everglow
