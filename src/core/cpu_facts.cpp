// Reads caches through sysfs, else sysconf, and the clock through sysfs, else CPUID; a virtual machine may hide each of them.
#include "core/cpu_facts.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace everglow {
namespace {

/// A data cache of the first core. The C library counts all caches of a socket where the kernel says what this machine has: 320
/// MiB for 32 on a part of an AMD EPYC.
std::int64_t cache_bytes(int level, int name) {
  constexpr int most_caches = 8;
  for (int index = 0; index < most_caches; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int of = 0;
    std::string type;
    std::int64_t kib = 0;
    if (!(std::ifstream(folder + "level") >> of) || !(std::ifstream(folder + "type") >> type)) break;
    if (of == level && type != "Instruction" && std::ifstream(folder + "size") >> kib && kib > 0) return kib * 1024;  // "32768K"
  }
  return std::max<std::int64_t>(sysconf(name), 0);
}

/// Leaf 0x16 of CPUID: the highest frequency in MHz; 0 where the CPU does not say.
double cpuid_ghz() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_max(0, nullptr) >= 0x16 && __get_cpuid(0x16, &a, &b, &c, &d) != 0) return (b & 0xffff) / 1000.0;
#endif
  return 0;
}

double clock_ghz() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  double khz = 0;
  if (file >> khz && khz > 0) return khz / 1e6;
  return cpuid_ghz();
}

bool has_amx_bf16() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;
#else
  return false;
#endif
}

}  // namespace

const SystemFacts& system_facts() {
  static const SystemFacts facts{.clock_ghz = clock_ghz(),
                                 .l1_bytes = cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE),
                                 .l2_bytes = cache_bytes(2, _SC_LEVEL2_CACHE_SIZE),
                                 .l3_bytes = cache_bytes(3, _SC_LEVEL3_CACHE_SIZE),
                                 .amx_bf16 = has_amx_bf16()};
  return facts;
}

}  // namespace everglow
