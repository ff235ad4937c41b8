// The peers of a build without oneDNN: none.
#include "bench/peers.hpp"

namespace everglow::bench {

std::vector<Row> onednn_linear(const LinearDescription&, const LinearSizes&, const std::shared_ptr<const LinearTensors>&, int) {
  return {};
}
std::vector<Row> onednn_lstm(const RecurrentDescription&, const RecurrentSizes&, const std::shared_ptr<const RecurrentTensors>&,
                             int) {
  return {};
}

}  // namespace everglow::bench
