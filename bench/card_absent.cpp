// Stands in for bench/cuda in a build without CUDA.
#include "bench/cuda/card.hpp"
#include "bench/cuda/peers.hpp"

namespace everglow::bench {

std::shared_ptr<Card> open_card(Device device) {
  throw Error(ErrorCode::unsupported, "bench", "--device " + to_string(device) + ": CUDA not built");
}
std::vector<Row> cublaslt_linear(const LinearDescription&, const LinearSizes&, const std::shared_ptr<const LinearTensors>&,
                                 const Settings&) {
  return {};
}
std::vector<Row> cudnn_recurrent(const RecurrentDescription&, const RecurrentSizes&, const std::shared_ptr<const RecurrentTensors>&,
                                 const Settings&) {
  return {};
}
std::vector<std::string> missing_peers() { return {}; }

}  // namespace everglow::bench
