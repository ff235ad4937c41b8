// Stands in for the translation model in a build without it.
#include "bench/problem.hpp"

namespace everglow::bench {

Problem gnmt_problem(const cases::Case&, const Settings&) {
  throw Error(ErrorCode::unsupported, "bench", "gnmt: the translation model is not part of this build; everglow bench has it");
}

}  // namespace everglow::bench
