// Which of the peers' libraries are not there.
#include "bench/cuda/peers.hpp"

namespace everglow::bench {

std::vector<std::string> missing_peers() {
  std::vector<std::string> out;
  for (const std::string& fault : {cublaslt_fault(), cudnn_fault()})
    if (!fault.empty()) out.push_back(fault);
  return out;
}

}  // namespace everglow::bench
