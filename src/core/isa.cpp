// Finds the instruction sets of this CPU (GCC's and clang's built-in CPUID reader) and the user's wish.
#include "core/isa.hpp"

#include <everglow/runtime.hpp>

#include "core/text.hpp"

#include <algorithm>
#include <cstdlib>

namespace everglow {

std::string_view name(Isa isa) noexcept {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::portable;
}

Isa parse_isa(std::string_view wish, std::string_view where) {
  if (wish == "portable") return Isa::portable;
  if (wish == "avx2") return Isa::avx2;
  if (wish == "avx512") return Isa::avx512;
  if (wish == "avx512_bf16" || wish == "amx") return Isa::avx512_bf16;
  const bool variable = where == "EVERGLOW_ISA";
  throw Error(ErrorCode::invalid_argument, where,
              text(variable ? "" : "isa: ", "expected portable, avx2, avx512, avx512_bf16 or amx (for example ",
                   variable ? "EVERGLOW_ISA=" : "", "avx2), got \"", wish, '"'));
}

Isa chosen_isa() {
  static const Isa chosen = [] {
    const Isa best = best_isa();
    const char* wish = std::getenv("EVERGLOW_ISA");
    if (wish == nullptr || *wish == 0) return best;
    return std::min(best, parse_isa(wish));
  }();
  return chosen;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  const auto note = [&found](bool present, const char* feature) {
    if (present) found.emplace_back(feature);
  };
  note(__builtin_cpu_supports("sse4.2"), "sse4.2");
  note(__builtin_cpu_supports("avx"), "avx");
  note(__builtin_cpu_supports("avx2"), "avx2");
  note(__builtin_cpu_supports("fma"), "fma");
  note(__builtin_cpu_supports("avx512f"), "avx512f");
  note(__builtin_cpu_supports("avx512bw"), "avx512bw");
  note(__builtin_cpu_supports("avx512dq"), "avx512dq");
  note(__builtin_cpu_supports("avx512vl"), "avx512vl");
  note(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  note(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
#endif
  return found;
}

}  // namespace everglow
