// Which instruction set the CPU rows use: the best one that this machine and this build have, lowered by EVERGLOW_ISA.
#pragma once

#include <cstdint>
#include <string_view>

namespace everglow {

/// In ascending order. avx512_bf16 is avx512 with dot products of pairs of bf16: what has no such products runs as in avx512.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16 };
inline constexpr Isa every_isa[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16};

std::string_view name(Isa isa) noexcept;
Isa best_isa();    ///< what the machine and the build offer
Isa chosen_isa();  ///< best_isa lowered by EVERGLOW_ISA, read once; a name that is not known throws
Isa parse_isa(std::string_view text, std::string_view where = "EVERGLOW_ISA");  ///< throws Error(invalid_argument) at `where`

/// The table of the chosen instruction set among those that an isa/ folder builds.
template <class Kernels>
const Kernels& select(Isa isa, const Kernels& portable, const Kernels& avx2, const Kernels& avx512) {
  return isa >= Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : portable;
}
/// The same where dot products of bf16 have a table of their own.
template <class Kernels>
const Kernels& select(Isa isa, const Kernels& portable, const Kernels& avx2, const Kernels& avx512, const Kernels& avx512_bf16) {
  return isa == Isa::avx512_bf16 ? avx512_bf16 : select(isa, portable, avx2, avx512);
}

}  // namespace everglow
